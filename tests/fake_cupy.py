"""CuPy without a GPU: arrays are NumPy's, kernels run in the simulator when they are launched, and
streams remember which others they wait for. For the paths of ``sgemm.gpu``, not for timing."""

import ctypes
import json
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from sgemm import gpu, simulator
from sgemm.compiler import Compiled
from sgemm.kernel_files import kernel_path

LEGACY = 0


class CudaError(RuntimeError):
    """What CuPy raises for an error of the driver or the runtime."""


class Device:
    """One of two; entering one makes it the current one."""

    current = 0
    compute_capability = "90"
    attributes = {"MultiProcessorCount": 5}  # noqa: RUF012 - as CuPy has it

    def __init__(self, number=None):
        self.id = Device.current if number is None else number
        self._outer = []

    def __eq__(self, other):
        return self.id == other.id

    def __enter__(self):
        self._outer.append(Device.current)
        Device.current = self.id
        return self

    def __exit__(self, *exception):
        Device.current = self._outer.pop()

    def synchronize(self):
        pass


class ndarray(np.ndarray):  # noqa: N801 - its name in CuPy
    """An array on the device that was current when it was made."""

    def __array_finalize__(self, source):
        self.number = getattr(source, "number", Device.current)

    @property
    def device(self):
        return Device(self.number)

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data, device_id=self.number)

    @property
    def __cuda_array_interface__(self):
        return {**self.__array_interface__, "version": 3, "stream": 1, "strides": self.strides}

    def __dlpack_device__(self):
        return 2, self.number

    def __dlpack__(self, *, stream, **options):
        return self

    def get(self):
        assert not Stream.current().capturing, "a copy to the host invalidates the capture"
        return np.array(self.view(np.ndarray))


class Stream:
    """``waits_for`` are the streams whose launches so far come before what it is given next."""

    streams: dict[int, "Stream"] = {}  # noqa: RUF012 - of the one fake device driver

    def __init__(self, ptr=None, non_blocking=False):
        self.ptr = 1000 + len(Stream.streams) if ptr is None else ptr
        self.waits_for, self.capturing = [], False
        Stream.streams[self.ptr] = self

    @classmethod
    def current(cls):
        return cls._stack[-1]

    def __enter__(self):
        Stream._stack.append(self)
        return self

    def __exit__(self, *exception):
        Stream._stack.pop()

    def is_capturing(self):
        return self.capturing

    @contextmanager
    def capture(self):
        self.capturing = True
        yield
        self.capturing = False

    def record(self):
        return SimpleNamespace(ptr=self.ptr)

    def synchronize(self):
        pass


Stream._stack = [Stream(LEGACY)]


class Module:
    """A compiled kernel: its file and its macros."""

    def load(self, cubin):
        self.source, self.defines = json.loads(cubin)
        self.device = Device.current

    def get_function(self, entry):
        def function(blocks, threads, args, shared_mem=0):
            assert Device.current == self.device, "CUDA error 400, invalid resource handle"
            Function.launches.append((Device.current, Stream.current().ptr))
            path = kernel_path(self.source)
            simulator.launch(path, entry, self.defines, *blocks, *threads, args)

        function.ptr = 0
        return function


class Function:
    """``launches``: device and stream of each."""

    launches: list[tuple[int, int]] = []  # noqa: RUF012 - of the one fake device driver


def compile_kernel(source, defines, arch):
    return Compiled(json.dumps([source, dict(defines)]).encode(), 32, 0, 0, "", "13.0")


def on_device(function):
    """NumPy's function, its results arrays on the current device."""

    def call(*arguments, **options):
        result = function(*arguments, **options)
        return result.view(ndarray) if isinstance(result, np.ndarray) else result

    return call


def from_dlpack(x):
    return x.__dlpack__(stream=Stream.current().ptr or 1, max_version=(1, 0), copy=None)


def asarray(x, dtype=None):
    if hasattr(x, "__cuda_array_interface__") and not isinstance(x, ndarray):
        interface = x.__cuda_array_interface__
        assert not (interface.get("stream") and Stream.current().capturing), "capture invalidated"
        x = SimpleNamespace(__array_interface__=interface)
    return np.asarray(x, dtype).view(ndarray)


def stream_wait_event(stream, event):
    Stream.streams[stream].waits_for.append(event)


def fake_cupy():
    cupy = ModuleType("cupy")
    for name in ("arange", "asfortranarray", "array", "broadcast_to", "empty", "empty_like", "eye"):
        setattr(cupy, name, on_device(getattr(np, name)))
    for name in ("full", "isnan", "ones", "zeros", "zeros_like"):
        setattr(cupy, name, on_device(getattr(np, name)))
    as_strided = on_device(np.lib.stride_tricks.as_strided)
    cupy.lib = SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=as_strided))
    for name in ("float32", "uint32", "int32", "dtype", "nan"):
        setattr(cupy, name, getattr(np, name))
    cupy.ndarray, cupy.asarray, cupy.from_dlpack = ndarray, asarray, from_dlpack
    cupy.asnumpy = lambda array: np.array(array.view(np.ndarray))
    cupy.cuda = ModuleType("cupy.cuda")
    cupy.cuda.Device, cupy.cuda.Stream = Device, Stream
    cupy.cuda.get_current_stream = Stream.current
    cupy.cuda.alloc = Memory
    cupy.cuda.function = SimpleNamespace(Module=Module)
    cupy.cuda.driver = SimpleNamespace(
        CUDADriverError=CudaError,
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK=0,
        funcGetAttribute=lambda attribute, function: 1024,
        funcSetAttribute=lambda function, attribute, value: None,
    )
    cupy.cuda.runtime = SimpleNamespace(
        getDeviceProperties=lambda device: {"name": b"Fake GPU"},
        CUDARuntimeError=CudaError,
        driverGetVersion=lambda: 13000,
        getDeviceCount=lambda: 2,
        streamWaitEvent=stream_wait_event,
        mallocAsync=lambda size, stream: (
            pool.setdefault(stream, []).append(Memory(size)) or pool[stream][-1].ptr
        ),
        freeAsync=free_async,
        memsetAsync=lambda address, value, size, stream: ctypes.memset(address, value, size),
        deviceSynchronize=lambda: None,
        getDevice=lambda: Device.current,
    )
    return cupy


class Memory:
    """So many bytes of the device's memory, 256-byte aligned like all of it."""

    def __init__(self, size):
        self._buffer = np.empty(size + 256, np.uint8)
        self.ptr = -(-self._buffer.ctypes.data // 256) * 256


pool: dict[int, list[Memory]] = {}
freed: list[int] = []
"""The addresses in ``pool`` that were given back. They stay, as a graph can be launched again."""


def free_async(address, stream):
    assert address in [memory.ptr for memory in pool[stream]]
    freed.append(address)


@pytest.fixture
def fake(monkeypatch):
    """``sgemm.gpu`` finds two fake GPUs."""
    cupy = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(gpu, "compile_kernel", compile_kernel)
    monkeypatch.setattr(gpu, "why_not", lambda arch, gpu: None)
    monkeypatch.setattr(gpu, "_devices", {})
    Function.launches.clear()
    pool.clear()
    freed.clear()
    return cupy
