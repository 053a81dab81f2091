"""The FP32 peak of this GPU, measured: a workload of multiply-adds and nothing else."""

from math import nan
from pathlib import Path

from .products import SEED
from .timing import WrongResultError

THREADS = 256
CHAINS = 16  # independent sums per thread
STEPS = 32  # per iteration of the kernel's loop; even, so that the sums come back to their start
ITERATIONS = 1000  # about 4 ms


class FfmaPeak:
    """The workload; ``flops`` is what one launch computes."""

    sets = 1

    def __init__(self) -> None:
        import cupy
        import numpy as np

        attributes = cupy.cuda.Device().attributes
        blocks_per_sm = attributes["MaxThreadsPerMultiProcessor"] // THREADS
        self._blocks = attributes["MultiProcessorCount"] * blocks_per_sm
        sums = self._blocks * THREADS * CHAINS
        self.flops = 2 * sums * STEPS * ITERATIONS

        # NumPy's floats in [0, 1) are multiples of 2**-24: 1 - sum is exact.
        self._start = cupy.asarray(np.random.default_rng(SEED).random(sums, np.float32))
        self._end = cupy.empty_like(self._start)
        self._args = np.float32(-1), np.float32(1), np.int32(ITERATIONS), self._start, self._end
        constants = {"THREADS": THREADS, "CHAINS": CHAINS, "STEPS": STEPS}
        self._kernel = cupy.RawModule(
            code=Path(__file__).with_suffix(".cu").read_text(),
            options=tuple(f"-D{name}={value}" for name, value in constants.items()),
        ).get_function("ffma_peak")

    def launch(self, i: int) -> None:
        self._kernel((self._blocks,), (THREADS,), self._args)

    def poison(self) -> None:
        self._end.fill(nan)

    def verify(self, launched: int) -> None:
        if (self._start != self._end).any():
            raise WrongResultError("the FFMA peak kernel has not made the steps that are counted")
