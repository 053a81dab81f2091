"""Where the tests compute: the simulator with NumPy arrays, the GPU with CuPy's."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from sgemm import simulator


@dataclass(frozen=True)
class Launch:
    """A kernel launch that was seen."""

    entry: str
    defines: Mapping[str, int]
    args: tuple[np.generic, ...]


class Place:
    name: str

    @property
    def xp(self) -> ModuleType:
        """The array module whose arrays live here."""
        raise NotImplementedError

    @property
    def backend(self) -> type:
        """The class of ``sgemm`` that launches kernels here."""
        raise NotImplementedError

    def order(self, seed: int) -> AbstractContextManager:
        """Draw the order that threads run in from ``seed``, where that can be chosen."""
        raise NotImplementedError

    def own_stream(self) -> AbstractContextManager:
        """Compute on a stream of one's own, where there are any."""
        raise NotImplementedError

    def to_host(self, array: Any) -> np.ndarray:
        raise NotImplementedError

    @contextmanager
    def launches(self) -> Iterator[list[Launch]]:
        """The kernels launched within the context, in order."""
        seen: list[Launch] = []
        launch_of = self.backend.launch_of

        def spy(backend, kernel, blocks, args):
            launch = launch_of(backend, kernel, blocks, args)

            def launch_seen():
                seen.append(Launch(kernel.entry, dict(kernel.defines), tuple(args)))
                launch()

            return launch_seen

        with mock.patch.object(self.backend, "launch_of", spy):
            yield seen


class _Simulator(Place):
    name = "simulator"
    xp = np

    @property
    def backend(self):
        from sgemm.simulated import Simulated

        return Simulated

    def order(self, seed):
        return simulator.order(seed)

    def own_stream(self):
        return nullcontext()

    def to_host(self, array):
        return np.asarray(array)


class _Gpu(Place):
    name = "gpu"

    @property
    def xp(self):
        import cupy

        return cupy

    @property
    def backend(self):
        from sgemm.gpu import Gpu

        return Gpu

    def order(self, seed):
        return nullcontext()

    @cached_property
    def _stream(self):
        return self.xp.cuda.Stream(non_blocking=True)

    def own_stream(self):
        return self._stream

    def to_host(self, array):
        return self.xp.asnumpy(array)


SIMULATOR = _Simulator()
GPU = _Gpu()
