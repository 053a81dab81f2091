"""CuPy arrays, and whatever CuPy can view without a copy: the kernels on the GPU."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from .compiler import Compiled, compile_kernel
from .errors import ArgumentError, ArgumentTypeError, KernelError, MissingError
from .ladder import Version
from .matrix import FLOAT_BYTES

_functions: dict[tuple[Any, ...], Any] = {}
_loading = Lock()


class Gpu:
    """One GPU, at its current CuPy stream, as the place where ``matmul`` runs."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.name = f"GPU {device.id}"

    @classmethod
    def of(cls, objects: dict[str, Any]) -> tuple["Gpu", dict[str, Any]]:
        arrays = {name: _as_cupy(name, x) for name, x in objects.items()}
        device = arrays["a"].device
        for name, array in arrays.items():
            if array.device != device:
                raise ArgumentTypeError(
                    f"{name}: lives on GPU {array.device.id} and a on GPU {device.id}; "
                    "all matrices must live on one device"
                )
        if "out" in objects and _is_read_only(objects["out"]):
            raise ArgumentError("out: is read-only; pass an array that can be written")
        return cls(device), arrays

    def runs(self, version: Version) -> bool:
        return self._compute_capability() >= version.min_compute_capability

    def check_work(self, m: int, n: int, k: int) -> None:
        """A GPU refuses nothing."""

    def empty(self, shape: tuple[int, int]) -> Any:
        with self.device:
            return _cupy().empty(shape, np.float32)

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    @contextmanager
    def workspace(self, floats: int) -> Iterator[int]:
        """Memory in the order of the current stream; under capture it belongs to the graph."""
        cuda = _cupy().cuda
        with self.device:
            stream = cuda.get_current_stream()
            if not stream.is_capturing():
                memory = cuda.alloc(floats * FLOAT_BYTES)
                yield memory.ptr
                return
            address = cuda.runtime.mallocAsync(floats * FLOAT_BYTES, stream.ptr)
            try:
                yield address
            finally:
                cuda.runtime.freeAsync(address, stream.ptr)

    def launch(
        self,
        source: str,
        entry: str,
        defines: Mapping[str, int],
        blocks: int,
        threads: int,
        args: Sequence[np.generic],
    ) -> None:
        with self.device:
            function = self._function(source, entry, defines, threads)
            function((blocks,), (threads,), args)

    def _compute_capability(self) -> tuple[int, int]:
        digits = self.device.compute_capability
        return int(digits[:-1]), int(digits[-1])

    def _function(self, source: str, entry: str, defines: Mapping[str, int], threads: int) -> Any:
        """The kernel, compiled and loaded on this device at its first use in this process."""
        key = (self.device.id, source, entry, *sorted(defines.items()))
        if key in _functions:
            return _functions[key]
        with _loading:
            if key not in _functions:
                compiled = compile_kernel(
                    source, defines, "sm_{}{}".format(*self._compute_capability())
                )
                module = _load(compiled, source)
                function = module.get_function(entry)
                _check_threads(function, source, compiled.registers, threads)
                _functions[key] = function
        return _functions[key]


def _load(compiled: Compiled, source: str) -> Any:
    cuda = _cupy().cuda
    module = cuda.function.Module()
    try:
        module.load(compiled.cubin)
    except cuda.driver.CUDADriverError as error:
        supported = cuda.runtime.driverGetVersion()
        raise KernelError(
            f"{source}: the driver, for CUDA {supported // 1000}.{supported % 1000 // 10}, "
            f"does not load what NVRTC {compiled.nvrtc} compiled ({error}); update the driver or "
            "install an older nvidia-cuda-nvrtc"
        ) from error
    return module


def _check_threads(function: Any, source: str, registers: int, threads: int) -> None:
    driver = _cupy().cuda.driver
    most = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function.ptr)
    if threads > most:
        raise KernelError(
            f"{source}: a block of {threads} threads with {registers} registers each does not fit "
            f"an SM; this kernel can have {most} threads at most"
        )


def _as_cupy(name: str, x: Any) -> Any:
    """``x`` as a CuPy array over the same memory."""
    cupy = _cupy()
    if isinstance(x, cupy.ndarray):
        return x
    try:
        return cupy.from_dlpack(x) if hasattr(x, "__dlpack__") else cupy.asarray(x)
    except Exception as error:  # whatever the other library's export raises
        raise ArgumentTypeError(f"{name}: {type(x).__name__} is not readable: {error}") from error


def _is_read_only(x: Any) -> bool:
    return hasattr(x, "__cuda_array_interface__") and x.__cuda_array_interface__["data"][1]


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise MissingError(
            f'arrays on a GPU need CuPy ({error}); pip install "sgemm[cuda13]" or "sgemm[cuda12]"'
        ) from error
    return cupy
