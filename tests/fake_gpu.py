"""A GPU that is not there: as much of CuPy, NVML and cuBLAS as the instrument uses, over NumPy.

Kernels run in the simulator, and the CPU's clock stands in for the device's.
"""

import sys
import time
from types import MappingProxyType, ModuleType, SimpleNamespace

import numpy as np
import pytest

from benchmarks import gpu, measure, sweep, table, timing, tune

MHZ = 1980
GPU = gpu.Gpu("Fake GPU", "0000:00:00.0", compute_capability=(9, 0), cuda="13.0")


class CudaError(RuntimeError):
    """What CuPy raises when a kernel has failed."""


class Event:
    def record(self):
        self.seconds = time.perf_counter()

    def synchronize(self):
        pass


class Stream:
    ptr = 0

    def __init__(self, non_blocking):
        assert non_blocking, "the default stream cannot be captured"

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


class Module:
    """The instrument's own kernels."""

    def __init__(self, code, options=()):
        self.code = code

    def get_function(self, name):
        assert f"{name}(" in self.code
        return getattr(self, name)

    @staticmethod
    def ffma_peak(grid, block, args):
        """Makes all steps at once: their number is even."""
        *_, start, end = args
        end[...] = start

    @staticmethod
    def empty(grid, block, args):
        pass

    @staticmethod
    def read_counters(grid, block, args):
        (counters,) = args
        counters[:, 0] = range(*grid)
        counters[:, 1] = time.perf_counter() * MHZ * 1e6


class Device:
    attributes = MappingProxyType(
        {
            "L2CacheSize": 40_000,
            "MultiProcessorCount": 1,
            "MaxThreadsPerMultiProcessor": 256,
            "GlobalMemoryBusWidth": 6016,
        }
    )


class Cublas:
    def __init__(self, stream):
        pass

    def version(self):
        return "13.1.0"

    def multiply(self, a, b, out):
        np.matmul(a, b, out=out)


class Monitor:
    """Sees ``processes`` on the GPU beside this one."""

    processes = 0
    max_sm_mhz = None  # no limit: the CPU may stall between an event and a reading of the counters

    def __init__(self, device):
        assert device == GPU

    def require_alone(self, own_processes):
        if self.processes:
            raise gpu.GpuBusyError("another process computes on the GPU")

    def read(self):
        return gpu.Reading(MHZ, 3201, 350.5, 40, ())

    def describe(self):
        return {"driver": "580.00", "max_sm_mhz": MHZ, "max_memory_mhz": 3201}


def fake_cupy():
    cupy = ModuleType("cupy")
    for name in ("asarray", "empty", "empty_like", "float32", "int64", "uint8"):
        setattr(cupy, name, getattr(np, name))
    cupy.asnumpy = np.asarray
    cupy.__version__ = "0"
    cupy.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
    cupy.RawModule = Module
    cupy.cuda = ModuleType("cupy.cuda")
    cupy.cuda.Device, cupy.cuda.Event, cupy.cuda.Stream = Device, Event, Stream
    cupy.cuda.get_elapsed_time = lambda start, end: (end.seconds - start.seconds) * 1000
    cupy.cuda.driver = SimpleNamespace(CUDADriverError=CudaError)
    cupy.cuda.runtime = SimpleNamespace(CUDARuntimeError=CudaError)
    return cupy


@pytest.fixture
def fake_gpu(monkeypatch):
    """Lets the instrument find the fake GPU, and take a fraction of its time. Gives what tests
    take hold of: ``cupy``, ``Monitor``, ``Cublas``, ``CudaError``, and the clock in ``MHZ``."""
    cupy = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cupy.cuda)
    monkeypatch.setattr(gpu, "find", lambda: GPU)
    monkeypatch.setattr(gpu, "Monitor", Monitor)
    for module in (measure, sweep, table, tune):
        monkeypatch.setattr(module, "Cublas", Cublas)
    monkeypatch.setattr(timing.CudaStream, "capture", lambda self, work: work)
    for constant in ("ESTIMATE_SECONDS", "WARM_UP_CAP_SECONDS", "CAP_SECONDS", "BLOCK_SECONDS"):
        monkeypatch.setattr(timing, constant, 0.01)
    for module in (measure, table):
        monkeypatch.setattr(module, "CAP_SECONDS", 0.01)
    return SimpleNamespace(cupy=cupy, Monitor=Monitor, Cublas=Cublas, CudaError=CudaError, MHZ=MHZ)
