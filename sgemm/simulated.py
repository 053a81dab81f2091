"""NumPy arrays: the same kernels, run by the simulator on the CPU."""

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from math import nan
from typing import Any

import numpy as np

from .errors import ArgumentError, ArgumentTypeError, SimulatorLimitError, first_line
from .kernel_files import kernel_path
from .ladder import LADDER, Version
from .matrix import FLOAT_BYTES
from .places import Kernel, Launch
from .simulator import Operand, is_instrumented
from .simulator import launch as simulator_launch

# Rough speed of the simulator, for its estimate of a product's time.
FMAS_PER_SECOND = 2e8
OUTPUTS_PER_SECOND = 2e7
INSTRUMENTED = 8  # times as long, where it checks or counts

ALIGNMENT = 256  # bytes

SMS = 6  # few, so that small products have tiles to share
_sms: ContextVar[int] = ContextVar("sms", default=SMS)


@dataclass(frozen=True, eq=False)
class SimulatedGpu:
    """The GPU that the simulator is: it runs every version, on so many SMs."""

    multiprocessors: int
    name = "the simulator"
    gpu_name = ""
    versions = tuple(LADDER)

    def runs(self, version: Version) -> bool:
        return True


_gpu_with = cache(SimulatedGpu)


class Simulated:
    """The simulator as the place where a product runs."""

    context: AbstractContextManager[Any] = nullcontext()

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> tuple["Simulated", dict[str, np.ndarray]]:
        for name, array in arrays.items():
            if isinstance(array, np.ma.MaskedArray):
                raise ArgumentTypeError(
                    f"{name}: a masked array is not accepted, its mask would be lost; "
                    f"pass {name}.filled(0)"
                )
        # What a subclass says of itself need not be what is in memory.
        plain = {name: np.ndarray.view(array, np.ndarray) for name, array in arrays.items()}
        if "out" in plain and not plain["out"].flags.writeable:
            raise ArgumentError("out: is read-only; pass an array that can be written")
        return cls(plain), plain

    def __init__(self, arrays: Mapping[str, np.ndarray] | None = None) -> None:
        self._arrays = arrays or {}
        self._workspaces: dict[int, np.ndarray] = {}  # by address
        self._results: dict[int, Operand] = {}  # of kernels, by address

    @property
    def hardware(self) -> SimulatedGpu:
        return _gpu_with(_sms.get())

    def check_work(self, m: int, n: int, k: int) -> None:
        limit = _limit_seconds()
        seconds = m * n * k / FMAS_PER_SECOND + m * n / OUTPUTS_PER_SECOND
        if is_instrumented():
            seconds *= INSTRUMENTED
        if seconds > limit:
            raise SimulatorLimitError(
                f"a: the simulator would take about {_rounded(seconds)} s for {m}x{n}x{k}, more "
                f"than {limit:g} s; set SGEMM_SIMULATOR_LIMIT={_rounded(2 * seconds)} to allow it, "
                "or pass CuPy arrays to run on a GPU"
            )

    def empty(self, shape: tuple[int, int]) -> np.ndarray:
        try:
            return np.empty(shape, np.float32)
        except ValueError as error:  # NumPy's, beyond all addresses
            raise MemoryError(first_line(error)) from error

    def address(self, array: np.ndarray) -> int:
        return int(array.__array_interface__["data"][0])

    def workspace(self, words: int, reusable: bool) -> int:
        memory = aligned(words * FLOAT_BYTES)
        address = self.address(memory)
        self._workspaces[address] = memory
        return address

    def clearing(self, address: int, words: int) -> Launch:
        def clear() -> None:
            ctypes.memset(address, 0, words * FLOAT_BYTES)

        return clear

    def launch_of(self, kernel: Kernel, blocks: int, args: Sequence[np.generic]) -> Launch:
        return partial(self._launch, kernel, blocks, args)

    def _launch(self, kernel: Kernel, blocks: int, args: Sequence[np.generic]) -> None:
        operands: tuple[Operand, ...] = ()
        tile = (0, 0)
        if is_instrumented():
            operands = self._operands(kernel, args)
            self._results[operands[-1].address] = operands[-1]
            if kernel.entry == "sgemm":
                tile = (kernel.defines["TILE_M"], kernel.defines["TILE_N"])
        path, entry, threads = kernel_path(kernel.source), kernel.entry, kernel.threads
        simulator_launch(path, entry, kernel.defines, blocks, threads, args, operands, tile)

    def hand_back(self) -> None:
        """The launches are over when they return."""

    def _operand(self, name: str, array: np.ndarray) -> Operand:
        strides = (stride // FLOAT_BYTES for stride in array.strides)
        return Operand(name, self.address(array), *array.shape, *strides)

    def _operands(self, kernel: Kernel, args: Sequence[np.generic]) -> tuple[Operand, ...]:
        """The matrices behind a kernel's arguments, its result last."""
        values = [arg.item() for arg in args]
        if kernel.entry == "copy_strided":
            rows, cols, source, source_row, source_col, target, target_row, target_col = values
            return (
                Operand("source", source, rows, cols, source_row, source_col),
                Operand("target", target, rows, cols, target_row, target_col, initialised=False),
            )
        if kernel.entry == "scale":
            rows, cols, beta, c, c_row, c_col = values
            return (Operand("C", c, rows, cols, c_row, c_col, initialised=beta != 0),)
        m, n, k, _alpha, a, lda, b, ldb, beta, c, ldc, *sharing = values
        return (
            Operand("A", a, m, k, lda, 1),
            self._b(b, k, n, ldb),
            *self._scratch(sharing),
            Operand("C", c, m, n, ldc, 1, initialised=beta != 0),
        )

    def _b(self, address: int, k: int, n: int, ldb: int) -> Operand:
        """B, whose layout the arguments do not tell: it is the matrix, or the transpose of the
        matrix, that is known to lie at that address."""
        arrays = [self._operand(name, array) for name, array in self._arrays.items()]
        for matrix in (*self._results.values(), *arrays):
            strides = {(matrix.rows, matrix.cols): (matrix.row_stride, matrix.col_stride)}
            strides[matrix.cols, matrix.rows] = matrix.col_stride, matrix.row_stride
            if matrix.address != address or (k, n) not in strides:
                continue
            if ldb in strides[k, n] or 1 in (k, n):
                return Operand("B", address, k, n, *strides[k, n])
        raise ArgumentError(f"args: no {k}×{n} matrix is known at B's address {address:#x}")

    def _scratch(self, sharing: Sequence[int]) -> Iterator[Operand]:
        """What the blocks of a stream-K kernel leave for each other: a workspace, first the floats
        and then the counts."""
        if not sharing or not sharing[0]:
            return
        _, partials, arrivals = sharing
        end = partials + self._workspaces[partials].nbytes
        floats, counts = (arrivals - partials) // FLOAT_BYTES, (end - arrivals) // FLOAT_BYTES
        yield Operand("partials", partials, 1, floats, floats, 1, initialised=False, scratch=True)
        yield Operand("arrivals", arrivals, 1, counts, counts, 1, scratch=True)


def aligned(size: int) -> np.ndarray:
    """So many bytes of memory that begin where a GPU's allocators let theirs begin. With NumPy's,
    the sectors that a request touches would be another number in every process."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]


@contextmanager
def simulated_sms(count: int) -> Iterator[None]:
    """Let the simulated GPU have so many SMs within the context, of this thread."""
    token = _sms.set(count)
    try:
        yield
    finally:
        _sms.reset(token)


def _rounded(seconds: float) -> str:
    """To two digits at least, however few seconds they are."""
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}"


def _limit_seconds() -> float:
    text = os.environ.get("SGEMM_SIMULATOR_LIMIT") or "30"
    try:
        limit = float(text)
    except ValueError:
        limit = nan
    if not limit >= 0:
        raise ArgumentError(f"SGEMM_SIMULATOR_LIMIT: {text!r} is no number of seconds from 0 up")
    return limit
