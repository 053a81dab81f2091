"""The GPU as its driver describes it: whether there is one, who else uses it, what state it is in.

Nothing here creates a CUDA context.
"""

import ctypes
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from .checkout import load

LOW_CLOCK = 0.8

_throttling = load("throttling")


class NoGpuError(RuntimeError):
    """There is no GPU to measure on; ``instead`` is what can be done without one."""

    def __init__(self, reason: str, instead: str = "") -> None:
        super().__init__(reason)
        self.instead = instead


class GpuBusyError(RuntimeError):
    """Another process computes on the GPU: its load would be measured too."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that CUDA programs see; ``cuda`` is the newest CUDA release its driver runs."""

    name: str
    pci_bus_id: str
    compute_capability: tuple[int, int]
    cuda: str

    @property
    def arch(self) -> str:
        """What compilers call its architecture, such as sm_90."""
        return "sm_{}{}".format(*self.compute_capability)


def find() -> Gpu | None:
    """The GPU that measurements run on, the first; None without a driver or without a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, version, major, minor = (ctypes.c_int() for _ in range(4))
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    name, bus_id = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceGetPCIBusId(bus_id, len(bus_id), device)
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # COMPUTE_CAPABILITY_MAJOR
    driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)  # COMPUTE_CAPABILITY_MINOR
    return Gpu(
        name=name.value.decode(),
        pci_bus_id=bus_id.value.decode(),
        compute_capability=(major.value, minor.value),
        cuda=f"{version.value // 1000}.{version.value % 1000 // 10}",
    )


@dataclass(frozen=True)
class Reading:
    """The state of a GPU at one moment; None for what this GPU does not report. ``low_clock`` marks
    SMs that run below LOW_CLOCK of their highest clock."""

    sm_mhz: int | None
    memory_mhz: int | None
    watts: float | None
    celsius: int | None
    throttled: tuple[str, ...] | None
    low_clock: bool = False


class Monitor:
    """Reads a GPU's state through NVML; ``max_sm_mhz`` is its SMs' highest clock, None where this
    GPU does not report it."""

    def __init__(self, gpu: Gpu) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._device = pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci_bus_id)
        self.max_sm_mhz: int | None = self._ask(
            pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM
        )

    def require_alone(self, own_processes: int, patience: float = 2.0) -> None:
        """Raise GpuBusyError if more processes than ``own_processes`` compute on the GPU.

        Processes are counted, as inside a container their ids are not those that NVML gives. One
        that is just ending has ``patience`` seconds to go.
        """
        deadline = time.monotonic() + patience
        while True:
            processes = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses) or []
            if len(processes) <= own_processes:
                return
            if time.monotonic() > deadline:
                ids = ", ".join(str(process.pid) for process in processes)
                raise GpuBusyError(
                    "another process computes on the GPU, and its load would be measured too; wait "
                    "for its end, or end it, and run this again (nvidia-smi tells who is there; "
                    f"process ids: {ids})"
                )
            time.sleep(0.1)

    def read(self) -> Reading:
        nvml = self._nvml
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage)
        reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        sm_mhz = self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM)
        return Reading(
            sm_mhz=sm_mhz,
            memory_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            watts=None if milliwatts is None else milliwatts / 1000,
            celsius=self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            throttled=None if reasons is None else _throttling.reasons(reasons),
            low_clock=(sm_mhz or inf) < LOW_CLOCK * (self.max_sm_mhz or 0),
        )

    def describe(self) -> dict[str, Any]:
        """The driver, the limits within which the GPU's clocks and power are kept, and a hash that
        tells one GPU of a model from another."""
        nvml = self._nvml
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerManagementLimit)
        uuid = self._ask(nvml.nvmlDeviceGetUUID)
        return {
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "gpu_id": uuid and hashlib.sha256(uuid.encode()).hexdigest()[:12],
            "max_sm_mhz": self.max_sm_mhz,
            "max_memory_mhz": self._ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM),
            "power_limit_watts": None if milliwatts is None else milliwatts / 1000,
        }

    def _ask(self, query: Callable[..., Any], *args: Any) -> Any:
        """The answer to one query, None where this GPU does not support it."""
        try:
            return query(self._device, *args)
        except self._nvml.NVMLError_NotSupported:
            return None
