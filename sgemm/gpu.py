"""CuPy arrays, and whatever CuPy can view without a copy: the kernels on the GPU."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from .causes import cuda_error, of_cupy_import
from .compiler import Compiled, compile_kernel, why_not
from .errors import ArgumentError, ArgumentTypeError, KernelError, MissingError
from .ladder import LADDER, Version
from .matrix import FLOAT_BYTES
from .places import unreadable

LEGACY_STREAM = 0
LEGACY_STREAM_IN_INTERFACES = 1  # where 0 is not allowed
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUDA's number of that attribute of a function

_functions: dict[tuple[Any, ...], Any] = {}
_multiprocessors: dict[int, int] = {}  # of a device
_versions: dict[int, tuple[str, ...]] = {}  # that a device can run
_loading = Lock()


class Gpu:
    """One GPU, at its current CuPy stream, as the place where ``matmul`` runs.

    ``owners_streams`` are those on which other libraries go on to use the arrays they have lent.
    """

    def __init__(self, device: Any, owners_streams: frozenset[int] = frozenset()) -> None:
        self.device = device
        self.name = f"GPU {device.id}"
        self._owners_streams = owners_streams

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
        streams = (_owners_stream(x) for x in objects.values())
        return cls(device, frozenset(stream for stream in streams if stream is not None)), arrays

    @property
    def multiprocessors(self) -> int:
        if self.device.id not in _multiprocessors:
            attributes = self.device.attributes  # all of them are asked for, which takes its time
            _multiprocessors[self.device.id] = int(attributes["MultiProcessorCount"])
        return _multiprocessors[self.device.id]

    @property
    def versions(self) -> tuple[str, ...]:
        if self.device.id not in _versions:
            _versions[self.device.id] = tuple(n for n, v in LADDER.items() if self.runs(v))
        return _versions[self.device.id]

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
    def workspace(self, floats: int, zeros: int = 0) -> Iterator[int]:
        """Memory in the order of the current stream; under capture it belongs to the graph."""
        cuda = _cupy().cuda
        size = (floats + zeros) * FLOAT_BYTES
        with self.device:
            stream = cuda.get_current_stream()
            if captured := stream.is_capturing():
                address = cuda.runtime.mallocAsync(size, stream.ptr)
            else:
                memory = cuda.alloc(size)
                address = memory.ptr
            try:
                if zeros:
                    start = address + floats * FLOAT_BYTES
                    cuda.runtime.memsetAsync(start, 0, zeros * FLOAT_BYTES, stream.ptr)
                yield address
            finally:
                if captured:
                    cuda.runtime.freeAsync(address, stream.ptr)

    def launch(
        self,
        source: str,
        entry: str,
        defines: Mapping[str, int],
        blocks: int,
        threads: int,
        args: Sequence[np.generic],
        dynamic_shared_bytes: int = 0,
    ) -> None:
        with self.device:
            function = self._function(source, entry, defines, threads, dynamic_shared_bytes)
            function((blocks,), (threads,), args, dynamic_shared_bytes)

    def hand_back(self) -> None:
        """Make the streams of the arrays' owners wait for the launches: what they do next to
        ``out`` comes after them, and memory that they free is not used again before them."""
        cuda = _cupy().cuda
        with self.device:
            stream = cuda.get_current_stream()
            waiting = self._owners_streams - {stream.ptr}
            if waiting and not stream.is_capturing():
                launched = stream.record()
                for owners_stream in waiting:
                    cuda.runtime.streamWaitEvent(owners_stream, launched.ptr)

    def _compute_capability(self) -> tuple[int, int]:
        digits = self.device.compute_capability
        return int(digits[:-1]), int(digits[-1])

    def _function(
        self,
        source: str,
        entry: str,
        defines: Mapping[str, int],
        threads: int,
        dynamic_shared_bytes: int,
    ) -> Any:
        """The kernel, compiled and loaded on this device at its first use in this process."""
        key = (self.device.id, source, entry, *sorted(defines.items()))
        if key in _functions:
            return _functions[key]
        with _loading:
            if key not in _functions:
                arch = "sm_{}{}".format(*self._compute_capability())
                if cause := why_not(arch, f"{self.name} ({arch})"):
                    raise MissingError(cause)
                compiled = compile_kernel(source, defines, arch)
                module = _load(compiled, source)
                function = module.get_function(entry)
                _check_threads(function, source, compiled.registers, threads)
                if dynamic_shared_bytes:
                    _cupy().cuda.driver.funcSetAttribute(
                        function.ptr, MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_shared_bytes
                    )
                _functions[key] = function
        return _functions[key]


def _load(compiled: Compiled, source: str) -> Any:
    cuda = _cupy().cuda
    module = cuda.function.Module()
    try:
        module.load(compiled.cubin)
    except cuda.driver.CUDADriverError as error:
        supported = cuda.runtime.driverGetVersion()
        both = (
            f"NVRTC {compiled.nvrtc}, driver for CUDA {supported // 1000}.{supported % 1000 // 10}"
        )
        raise cuda_error(error, f"{source} ({both})") from error
    return module


def _check_threads(function: Any, source: str, registers: int, threads: int) -> None:
    driver = _cupy().cuda.driver
    most = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function.ptr)
    if threads > most:
        raise KernelError(
            f"{source}: a block of {threads} threads with {registers} registers each does not fit "
            f"an SM; this kernel can have {most} threads at most"
        )


def read_scalar(name: str, x: Any) -> np.ndarray:
    """The number in an array on a GPU, on the host; waits for the current stream to write it."""
    if _cupy().cuda.get_current_stream().is_capturing():
        raise ArgumentError(
            f"{name}: is on a GPU, where it cannot be read while the stream is being captured; "
            "pass a Python number"
        )
    array = _as_cupy(name, x)
    with array.device:
        return np.asarray(array.get())


def _as_cupy(name: str, x: Any) -> Any:
    """``x`` as a CuPy array over the same memory, ready for the current stream."""
    cupy = _cupy()
    if isinstance(x, cupy.ndarray):
        return x
    try:
        lent = _WithoutWaiting(x) if cupy.cuda.get_current_stream().is_capturing() else x
        return cupy.from_dlpack(lent) if hasattr(x, "__dlpack__") else cupy.asarray(lent)
    except Exception as error:  # whatever the other library's export raises
        raise unreadable(name, x, error) from error


class _WithoutWaiting:
    """Exports an array without ordering streams: what is being captured cannot wait for other
    work, and whoever replays it orders it."""

    def __init__(self, array: Any) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self._array.__cuda_array_interface__, "stream": None}

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __dlpack__(self, *, stream: int, **options: Any) -> Any:
        return self._array.__dlpack__(stream=-1, **options)


def _owners_stream(x: Any) -> int | None:
    """The stream on which the library that ``x`` comes from uses it; None where that is unknown,
    or CuPy's own, which callers order themselves."""
    if isinstance(x, _cupy().ndarray):
        return None
    torch = sys.modules.get("torch")  # whose tensors have no other way to say it
    if torch is not None and isinstance(x, torch.Tensor):
        return int(torch.cuda.current_stream(x.device).cuda_stream)
    stream = _interface(x).get("stream")
    return LEGACY_STREAM if stream == LEGACY_STREAM_IN_INTERFACES else stream


def _is_read_only(x: Any) -> bool:
    _address, read_only = _interface(x).get("data") or (0, False)
    return bool(read_only)


def _interface(x: Any) -> dict[str, Any]:
    """What ``x`` says of itself, where it does not leave that to DLPack."""
    return getattr(x, "__cuda_array_interface__", None) or {}


def _cupy() -> Any:
    try:
        import cupy
    except Exception as error:  # whatever it is that CuPy does not work with
        raise MissingError(of_cupy_import(error)) from error
    return cupy
