"""CuPy arrays, and whatever CuPy can view without a copy: the kernels on the GPU."""

import sys
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from functools import cached_property, partial
from operator import index
from threading import Lock
from typing import Any

import numpy as np

from .causes import cuda_error, is_cuda_error, of_cupy_import
from .compiler import Compiled, compile_kernel, why_not
from .errors import ArgumentError, ArgumentTypeError, KernelError, MissingError
from .ladder import Version, names_for
from .matrix import FLOAT_BYTES
from .places import Kernel, Launch, cupy_array, unreadable

LEGACY_STREAM = 0
LEGACY_STREAM_IN_INTERFACES = 1  # where 0 is not allowed
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUDA's number of that attribute of a function

_loading = Lock()


class _Device:
    """What is known of one GPU, asked once, and the kernels that are loaded on it."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.name = f"GPU {device.id}"
        digits = device.compute_capability
        self.compute_capability = int(digits[:-1]), int(digits[-1])
        self.versions = names_for(self.compute_capability)
        self.functions: dict[Kernel, Any] = {}

    def runs(self, version: Version) -> bool:
        return self.compute_capability >= version.min_compute_capability

    @cached_property
    def gpu_name(self) -> str:
        properties = _cupy().cuda.runtime.getDeviceProperties(self._device.id)
        return str(properties["name"].decode())

    @cached_property
    def multiprocessors(self) -> int:
        return int(self._device.attributes["MultiProcessorCount"])


_devices: dict[int, _Device] = {}


class Gpu:
    """One GPU, at its current CuPy stream, as the place where a product runs.

    ``owners_streams`` are those on which other libraries go on to use the arrays they have lent.
    """

    def __init__(self, device: Any, owners_streams: Set[int] = frozenset()) -> None:
        self.context = device
        self._owners_streams = owners_streams
        self._workspaces: list[Any] = []
        self._of_the_graph: list[int] = []  # the addresses of workspaces
        if device.id not in _devices:
            _devices.setdefault(device.id, _Device(device))  # another thread may be as far
        self.hardware = _devices[device.id]

    @classmethod
    def of(cls, objects: dict[str, Any]) -> tuple["Gpu", dict[str, Any]]:
        cupys = cupy_array()
        arrays, lent = objects, {}
        for name, x in objects.items():
            if not isinstance(x, cupys):
                arrays = arrays | {name: _as_cupy(name, x)}
                lent[name] = x
        device = arrays["a"].device
        for name, array in arrays.items():
            if array.data.device_id != device.id:
                raise ArgumentTypeError(
                    f"{name}: lives on GPU {array.device.id} and a on GPU {device.id}; "
                    "all matrices must live on one device"
                )
        if not lent:
            return cls(device), arrays
        if "out" in lent and _is_read_only("out", lent["out"]):
            raise ArgumentError("out: is read-only; pass an array that can be written")
        found = [_owners_stream(name, x) for name, x in lent.items()]
        return cls(device, {stream for stream in found if stream is not None}), arrays

    def check_work(self, m: int, n: int, k: int) -> None:
        """A GPU refuses nothing."""

    def empty(self, shape: tuple[int, int]) -> Any:
        return _cupy().empty(shape, np.float32)

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def workspace(self, words: int, reusable: bool) -> int:
        """Memory in the order of the current stream; under capture it belongs to the graph, unless
        it is reusable."""
        cuda, size = _cupy().cuda, words * FLOAT_BYTES
        stream = cuda.get_current_stream()
        if stream.is_capturing() and not reusable:
            address = int(cuda.runtime.mallocAsync(size, stream.ptr))
            self._of_the_graph.append(address)
            return address
        memory = cuda.alloc(size)
        self._workspaces.append(memory)
        return int(memory.ptr)

    def clearing(self, address: int, words: int) -> Launch:
        cuda, size = _cupy().cuda, words * FLOAT_BYTES

        def clear() -> None:
            cuda.runtime.memsetAsync(address, 0, size, cuda.get_current_stream().ptr)

        return clear

    def launch_of(self, kernel: Kernel, blocks: int, args: Sequence[np.generic]) -> Launch:
        function, shared = self._function(kernel), kernel.dynamic_shared_bytes
        return partial(function, (blocks,), (kernel.threads,), args, shared)

    def hand_back(self) -> None:
        """Make the streams of the arrays' owners wait for the launches: what they do next to
        ``out`` comes after them, and memory that they free is not used again before them."""
        if not self._owners_streams and not self._of_the_graph:
            return
        cuda = _cupy().cuda
        stream = cuda.get_current_stream()
        for address in self._of_the_graph:
            cuda.runtime.freeAsync(address, stream.ptr)
        waiting = self._owners_streams - {stream.ptr}
        if waiting and not stream.is_capturing():
            launched = stream.record()
            for owners_stream in waiting:
                cuda.runtime.streamWaitEvent(owners_stream, launched.ptr)

    def _function(self, kernel: Kernel) -> Any:
        """The kernel, compiled and loaded on this device at its first use in this process."""
        functions = self.hardware.functions
        if kernel in functions:
            return functions[kernel]
        with _loading:
            if kernel not in functions:
                arch = "sm_{}{}".format(*self.hardware.compute_capability)
                if cause := why_not(arch, f"{self.hardware.name} ({arch})"):
                    raise MissingError(cause)
                compiled = compile_kernel(kernel.source, kernel.defines, arch)
                function = _load(compiled, kernel.source).get_function(kernel.entry)
                _check_threads(function, kernel, compiled.registers)
                if kernel.dynamic_shared_bytes:
                    _cupy().cuda.driver.funcSetAttribute(
                        function.ptr, MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.dynamic_shared_bytes
                    )
                functions[kernel] = function
        return functions[kernel]


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


def _check_threads(function: Any, kernel: Kernel, registers: int) -> None:
    driver = _cupy().cuda.driver
    most = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function.ptr)
    if kernel.threads > most:
        raise KernelError(
            f"{kernel.source}: a block of {kernel.threads} threads with {registers} registers each "
            f"does not fit an SM; this kernel can have {most} threads at most"
        )


def read_scalar(name: str, x: Any) -> np.ndarray:
    """The number in an array on a GPU, on the host; waits for the current stream to write it."""
    if _cupy().cuda.get_current_stream().is_capturing():
        raise ArgumentError(
            f"{name}: is on a GPU, where it cannot be read while the stream is being captured; "
            "pass a Python number"
        )
    array = x if isinstance(x, cupy_array()) else _as_cupy(name, x)
    with array.device:
        return np.asarray(array.get())


def _as_cupy(name: str, x: Any) -> Any:
    """What is no CuPy array as one over the same memory, ready for the current stream."""
    cupy = _cupy()
    try:
        lent = _WithoutWaiting(x) if cupy.cuda.get_current_stream().is_capturing() else x
        return cupy.from_dlpack(lent) if hasattr(x, "__dlpack__") else cupy.asarray(lent)
    except Exception as error:  # whatever the other library's export raises
        if is_cuda_error(error):
            raise
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


def _owners_stream(name: str, x: Any) -> int | None:
    """The stream on which the library that has lent ``x`` uses it; None where that is unknown."""
    torch = sys.modules.get("torch")  # whose tensors have no other way to say it
    if torch is not None and isinstance(x, torch.Tensor):
        return int(torch.cuda.current_stream(x.device).cuda_stream)
    with _read(name, x) as interface:
        if (stream := interface.get("stream")) is None:
            return None
        handle = int(np.uintp(index(stream)))
        return LEGACY_STREAM if handle == LEGACY_STREAM_IN_INTERFACES else handle


def _is_read_only(name: str, x: Any) -> bool:
    with _read(name, x) as interface:
        _address, read_only = interface.get("data") or (0, False)
        return bool(read_only)


@contextmanager
def _read(name: str, x: Any) -> Iterator[Any]:
    """What ``x`` says of itself, where it does not leave that to DLPack; ArgumentTypeError where it
    is not as the interface wants it."""
    try:
        yield getattr(x, "__cuda_array_interface__", None) or {}
    except Exception as error:
        raise unreadable(name, x, error) from error


def _cupy() -> Any:
    try:
        import cupy
    except Exception as error:  # whatever it is that CuPy does not work with
        raise MissingError(of_cupy_import(error)) from error
    return cupy
