"""Looks at the machine for the doctor: the driver, the GPUs' state, what hides them, what is
installed. Starts the driver, and creates no context on a GPU."""

import ctypes
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import cache, causes, compiler, sass, throttling
from .errors import MissingError, first_line
from .releases import Capability, Release

# The words of glibc's loader, and of musl's.
_NO_LIBCUDA = re.compile(r"libcuda\.so\.1: (cannot open shared object file: )?No such file")
_CLOCK_SM, _INSUFFICIENT_SIZE = 1, 7  # NVML's numbers
_CAP_SYS_ADMIN, _CAP_PERFMON = 21, 38  # either may read the GPU's counters
_OTHER_DEVICE_FILES = "dev/dxg", "dev/nvmap"  # a GPU's under WSL 2, and a Jetson's
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # on the PCI bus: vendor, and class of a GPU


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver shows it to CUDA programs."""

    name: str
    capability: Capability
    pci_bus_id: str = ""


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver: its release, the newest CUDA that it supports, and its GPUs.

    ``status`` is CUDA's error number where it does not start, ``failure`` its text.
    """

    release: str
    cuda: Release
    gpus: tuple[Gpu, ...] = ()
    status: int = 0
    failure: str = ""


@dataclass(frozen=True)
class Board:
    """A GPU as NVML shows it to administrators, with the state that measuring depends on; None for
    what it does not report. ``throttled`` says what holds its clocks down, ``processes`` are those
    that compute on it."""

    name: str
    pci_bus_id: str = ""
    mig: bool | None = None
    persistence: bool | None = None
    sm_mhz: int | None = None
    max_sm_mhz: int | None = None
    idle: bool = False
    throttled: tuple[str, ...] = ()
    processes: tuple[int, ...] | None = ()


@dataclass(frozen=True)
class Host:
    """What can hide a GPU from a program. ``denied`` is the device file that cannot be opened and
    why; ``counters`` whether this process may read the GPU's counters, None where nothing tells."""

    container: bool = False
    gpus_on_bus: int = 0
    kernel_module: bool = False
    device_files: bool = False
    denied: tuple[str, str] | None = None
    counters: bool | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


def import_numpy() -> str:
    """NumPy's version, by NumPy itself."""
    import numpy

    return str(numpy.__version__)


def find_cupy_wheels() -> dict[str, str]:
    """The distributions that bring the package cupy, with their versions."""
    names = re.compile(r"cupy(-cuda\w+|-rocm[\w-]+)?")
    return {
        distribution.name: distribution.version
        for distribution in importlib.metadata.distributions()
        if distribution.name and names.fullmatch(distribution.name)
    }


def import_cupy() -> str:
    """CuPy's version, by CuPy itself."""
    import cupy

    return str(cupy.__version__)


def find_driver() -> Driver | None:
    """The driver and its GPUs, through libcuda itself; None where there is no driver, MissingError
    where it is damaged."""
    number = ctypes.c_int()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        cuda.cuDriverGetVersion(ctypes.byref(number))
        status = cuda.cuInit(0)
    except (OSError, AttributeError) as error:
        if _NO_LIBCUDA.search(str(error)):
            return None
        raise MissingError(causes.LIBCUDA_BROKEN.of(detail=first_line(error))) from error
    supported = (number.value // 1000, number.value % 1000 // 10)
    if status:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(status, ctypes.byref(text))
        failure = (text.value or b"unknown error").decode()
        return Driver(_driver_release(), supported, status=status, failure=failure)
    cuda.cuDeviceGetCount(ctypes.byref(number))
    gpus = tuple(_gpu(cuda, index) for index in range(number.value))
    return Driver(_driver_release(), supported, gpus)


def _gpu(cuda: ctypes.CDLL, index: int) -> Gpu:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name, bus_id = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceGetPCIBusId(bus_id, len(bus_id), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # COMPUTE_CAPABILITY_MAJOR
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)  # COMPUTE_CAPABILITY_MINOR
    return Gpu(name.value.decode(), (major.value, minor.value), bus_id.value.decode())


def _start_nvml() -> ctypes.CDLL | None:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        return None if nvml.nvmlInit_v2() else nvml
    except (OSError, AttributeError):  # there is none, or it is damaged
        return None


def _driver_release() -> str:
    """The driver's own release, such as ``"580.95.05"``, which only NVML tells."""
    nvml = _start_nvml()
    release = ctypes.create_string_buffer(96)
    if nvml is None or nvml.nvmlSystemGetDriverVersion(release, len(release)):
        return "unknown release"
    return release.value.decode()


def find_boards() -> list[Board]:
    """All GPUs of the machine, through NVML; none where it does not start."""
    nvml, count = _start_nvml(), ctypes.c_uint()
    if nvml is None or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    return [_board(nvml, index) for index in range(count.value)]


def _board(nvml: ctypes.CDLL, index: int) -> Board:
    device = ctypes.c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))

    def number(function: str, *arguments: int, type_: type = ctypes.c_uint) -> int | None:
        value = type_()
        status = getattr(nvml, function)(device, *arguments, ctypes.byref(value))
        return None if status else value.value

    def flag(function: str) -> bool | None:
        value = number(function)
        return None if value is None else bool(value)

    name = ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetName(device, name, len(name))
    mig, pending = ctypes.c_uint(), ctypes.c_uint()
    no_mig = nvml.nvmlDeviceGetMigMode(device, ctypes.byref(mig), ctypes.byref(pending))
    reasons = number("nvmlDeviceGetCurrentClocksThrottleReasons", type_=ctypes.c_ulonglong) or 0
    return Board(
        name=name.value.decode(),
        pci_bus_id=_pci_bus_id(nvml, device),
        mig=None if no_mig else bool(mig.value),
        persistence=flag("nvmlDeviceGetPersistenceMode"),
        sm_mhz=number("nvmlDeviceGetClockInfo", _CLOCK_SM),
        max_sm_mhz=number("nvmlDeviceGetMaxClockInfo", _CLOCK_SM),
        idle=bool(reasons & throttling.IDLE),
        throttled=throttling.reasons(reasons),
        processes=_processes(nvml, device),
    )


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("legacy_bus_id", ctypes.c_char * 16),
        ("numbers", ctypes.c_uint * 5),
        ("bus_id", ctypes.c_char * 32),
    )


def _pci_bus_id(nvml: ctypes.CDLL, device: ctypes.c_void_p) -> str:
    """As CUDA writes it, with four digits of the domain."""
    info = _PciInfo()
    if nvml.nvmlDeviceGetPciInfo_v3(device, ctypes.byref(info)):
        return ""
    return str(info.bus_id.decode())[-12:]


class _ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def _processes(nvml: ctypes.CDLL, device: ctypes.c_void_p) -> tuple[int, ...] | None:
    """The ids, in the host's numbering, of the processes that compute on the GPU; None where it
    does not tell."""
    for room in (64, 1 << 10, 1 << 16):
        found, count = (_ProcessInfo * room)(), ctypes.c_uint(room)
        status = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found)
        if status != _INSUFFICIENT_SIZE:
            break
    return None if status else tuple(process.pid for process in found[: count.value])


def find_host(root: Path = Path("/")) -> Host:
    """What lies between the GPU and this process; ``root`` is where the file system begins."""
    driver = root / "proc/driver/nvidia"
    files = [root / "dev/nvidiactl", *sorted((root / "dev").glob("nvidia[0-9]*"))]
    files = [file for file in files if file.exists()]
    return Host(
        container=_in_container(root),
        gpus_on_bus=sum(map(_is_gpu, (root / "sys/bus/pci/devices").glob("*"))),
        kernel_module=(driver / "version").exists(),
        device_files=bool(files or any((root / file).exists() for file in _OTHER_DEVICE_FILES)),
        denied=next(filter(None, map(_denied, files)), None),
        counters=_may_read_counters(driver / "params", root / "proc/self/status"),
        variables={
            name: os.environ[name]
            for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
            if name in os.environ
        },
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _in_container(root: Path) -> bool:
    marks = (root / ".dockerenv", root / "run/.containerenv")
    groups = _read(root / "proc/1/cgroup")
    return any(mark.exists() for mark in marks) or bool(
        re.search("docker|containerd|kubepods|libpod", groups)
    )


def _is_gpu(device: Path) -> bool:
    return _read(device / "vendor").strip() == _NVIDIA and _read(device / "class").startswith(
        _DISPLAY
    )


def _denied(file: Path) -> tuple[str, str] | None:
    """A device file that cannot be opened, and why."""
    try:
        os.close(os.open(file, os.O_RDWR | os.O_NONBLOCK))
    except OSError as error:
        return str(file), error.strerror or "unknown error"
    return None


def _may_read_counters(parameters: Path, status: Path) -> bool | None:
    restricted = re.search(r"^RmProfilingAdminOnly: (\d)", _read(parameters), re.MULTILINE)
    if restricted is None:
        return None
    rights = re.search(r"^CapEff:\s*(\w+)", _read(status), re.MULTILINE)
    held = int(rights[1], 16) if rights else 0
    return restricted[1] == "0" or bool(held >> _CAP_SYS_ADMIN & 1 or held >> _CAP_PERFMON & 1)


def find_nvrtc() -> tuple[str, list[str]]:
    """NVRTC's release and the architectures that it compiles for; MissingError without NVRTC."""
    return compiler.nvrtc_version(), compiler.architectures()


def find_headers() -> str | None:
    """The folder of the CUDA headers that CuPy compiles with."""
    from cuda.pathfinder import find_nvidia_header_directory

    found: str | None = find_nvidia_header_directory("cudart")
    return found


def find_cpp_compiler() -> str:
    """The simulator's C++ compiler; MissingError where there is none."""
    from . import simulator  # imports NumPy, whose absence is a finding of its own

    return simulator.find_compiler()


def find_binutils() -> str:
    """The tools that read the simulator's libraries; MissingError where one does not run."""
    from . import simulator

    return ", ".join(simulator.find_tools())


def find_nvcc() -> tuple[str, str] | None:
    """Path and release of the nvcc on PATH."""
    path = shutil.which("nvcc")
    if path is None:
        return None
    text = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=30).stdout
    release = re.search(r"release ([0-9.]+)", text)
    return path, release[1] if release else "unknown release"


@dataclass(frozen=True)
class Probes:
    """How each part of the environment is looked at; a test puts another environment here."""

    python: tuple[int, int, int] = sys.version_info[:3]
    numpy: Callable[[], str] = import_numpy
    cupy_wheels: Callable[[], dict[str, str]] = find_cupy_wheels
    cupy: Callable[[], str] = import_cupy
    driver: Callable[[], Driver | None] = find_driver
    boards: Callable[[], list[Board]] = find_boards
    host: Callable[[], Host] = find_host
    nvrtc: Callable[[], tuple[str, list[str]]] = find_nvrtc
    headers: Callable[[], str | None] = find_headers
    toolkit: Callable[[], tuple[str, str] | None] = causes.named_toolkit
    cpp_compiler: Callable[[], str] = find_cpp_compiler
    binutils: Callable[[], str] = find_binutils
    nvdisasm: Callable[[], str | None] = sass.find_disassembler
    cache_folder: Callable[[], Path] = cache.folder
    nvcc: Callable[[], tuple[str, str] | None] = find_nvcc
