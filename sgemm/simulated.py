"""NumPy arrays: the same kernels, run by the simulator on the CPU."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import nan

import numpy as np

from .errors import ArgumentError, ArgumentTypeError, SimulatorLimitError
from .kernel_files import kernel_path
from .ladder import Version
from .matrix import FLOAT4_BYTES, FLOAT_BYTES
from .simulator import launch as simulator_launch

# Rough speed of the simulator, for its estimate of a product's time.
FMAS_PER_SECOND = 2e8
OUTPUTS_PER_SECOND = 2e7


class Simulated:
    """The simulator as the place where ``matmul`` runs."""

    name = "the simulator"

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> tuple["Simulated", dict[str, np.ndarray]]:
        for name, array in arrays.items():
            if isinstance(array, np.ma.MaskedArray):
                raise ArgumentTypeError(
                    f"{name}: a masked array is not accepted, its mask would be lost; "
                    f"pass {name}.filled()"
                )
        if "out" in arrays and not arrays["out"].flags.writeable:
            raise ArgumentError("out: is read-only; pass an array that can be written")
        return cls(), dict(arrays)

    def runs(self, version: Version) -> bool:
        return True

    def check_work(self, m: int, n: int, k: int) -> None:
        limit = _limit_seconds()
        seconds = m * n * k / FMAS_PER_SECOND + m * n / OUTPUTS_PER_SECOND
        if seconds > limit:
            raise SimulatorLimitError(
                f"a: the simulator would take about {seconds:.0f} s for {m}x{n}x{k}, more than "
                f"{limit:g} s; set SGEMM_SIMULATOR_LIMIT={seconds * 2:.0f} to allow it, or pass "
                "CuPy arrays to run on a GPU"
            )

    def empty(self, shape: tuple[int, int]) -> np.ndarray:
        return np.empty(shape, np.float32)

    def address(self, array: np.ndarray) -> int:
        return int(array.__array_interface__["data"][0])

    @contextmanager
    def workspace(self, floats: int) -> Iterator[int]:
        memory = np.empty(floats * FLOAT_BYTES + FLOAT4_BYTES, np.uint8)
        yield -(-self.address(memory) // FLOAT4_BYTES) * FLOAT4_BYTES

    def launch(
        self,
        source: str,
        entry: str,
        defines: Mapping[str, int],
        blocks: int,
        threads: int,
        args: Sequence[np.generic],
    ) -> None:
        simulator_launch(kernel_path(source), entry, defines, blocks, threads, args)


def _limit_seconds() -> float:
    text = os.environ.get("SGEMM_SIMULATOR_LIMIT") or "30"
    try:
        limit = float(text)
    except ValueError:
        limit = nan
    if not limit >= 0:
        raise ArgumentError(f"SGEMM_SIMULATOR_LIMIT: {text!r} is no number of seconds from 0 up")
    return limit
