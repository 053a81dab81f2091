"""Examines the environment: what ``sgemm`` needs, what is there, and how to repair it."""

import ctypes
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from . import cache, compiler, report
from .ladder import LADDER

T = TypeVar("T")
Capability = tuple[int, int]

OLDEST_PYTHON = (3, 11)
CUPY_WHEELS = ("cupy-cuda13x", "cupy-cuda12x", "cupy")

CUDA_NUMBERS = (
    "`nvcc -V` shows the CUDA toolkit that is installed; `nvidia-smi` shows the newest CUDA that "
    "the driver supports. They are two things, so they may differ, and neither is wrong. sgemm "
    "uses neither nvcc nor its toolkit: the NVRTC wheel compiles the kernels. What matters here is "
    "that NVRTC knows the GPU's compute capability and that the driver supports NVRTC's CUDA major."
)


@dataclass(frozen=True)
class Finding:
    """One thing examined: what was seen, why it matters, and the command that repairs it."""

    name: str
    verdict: Literal["ok", "problem", "absent"]
    seen: str
    why: str = ""
    repair: str = ""

    @property
    def advice(self) -> str:
        """Why it matters and how to repair it, as one sentence; empty where there is nothing."""
        return f"{self.why}; repair: {self.repair}" if self.repair else self.why


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver sees it."""

    name: str
    capability: Capability


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver: its release, the newest CUDA that it supports, and its GPUs.

    ``failure`` says why the driver does not start, where it does not.
    """

    release: str
    cuda: Capability
    gpus: tuple[Gpu, ...] = ()
    failure: str = ""


def find_package(name: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_driver() -> Driver | None:
    """The driver and its GPUs, through libcuda itself; None where there is no driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    supported = (number.value // 1000, number.value % 1000 // 10)
    if status := cuda.cuInit(0):
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(status, ctypes.byref(text))
        reason = (text.value or b"unknown error").decode()
        return Driver(_driver_release(), supported, failure=f"error {status}: {reason}")
    cuda.cuDeviceGetCount(ctypes.byref(number))
    gpus = tuple(_gpu(cuda, index) for index in range(number.value))
    return Driver(_driver_release(), supported, gpus)


def _gpu(cuda: ctypes.CDLL, index: int) -> Gpu:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # COMPUTE_CAPABILITY_MAJOR
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)  # COMPUTE_CAPABILITY_MINOR
    return Gpu(name.value.decode(), (major.value, minor.value))


def _driver_release() -> str:
    """The driver's own release, such as ``"580.95.05"``, which only NVML tells."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return "unknown release"
    release = ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(release, len(release)):
        return "unknown release"
    nvml.nvmlShutdown()
    return release.value.decode()


def find_nvrtc() -> tuple[str, list[str]]:
    """NVRTC's release and the architectures that it compiles for; MissingError without NVRTC."""
    return compiler.nvrtc_version(), compiler.architectures()


def find_cpp_compiler() -> str:
    """The simulator's C++ compiler; MissingError where there is none."""
    from . import simulator  # imports NumPy, whose absence is a finding of its own

    return simulator.find_compiler()


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
    package: Callable[[str], str | None] = find_package
    driver: Callable[[], Driver | None] = find_driver
    nvrtc: Callable[[], tuple[str, list[str]]] = find_nvrtc
    cpp_compiler: Callable[[], str] = find_cpp_compiler
    cache_folder: Callable[[], Path] = cache.folder
    nvcc: Callable[[], tuple[str, str] | None] = find_nvcc


def examine(probes: Probes | None = None) -> list[Finding]:
    """Every finding about this environment; a probe that fails is a finding too."""
    probes = probes or Probes()
    driver = _attempt(probes.driver)
    nvrtc = _attempt(probes.nvrtc)
    cupy = {name: version for name in CUPY_WHEELS if (version := probes.package(name))}
    return [
        _python(probes.python),
        _numpy(probes.package("numpy")),
        _driver(driver),
        *_gpus(driver, nvrtc),
        _nvrtc(nvrtc, driver),
        _cupy(cupy, driver),
        _cpp_compiler(_attempt(probes.cpp_compiler), driver),
        _cache_folder(_attempt(probes.cache_folder)),
        _nvcc(_attempt(probes.nvcc)),
    ]


def has_gpu(findings: list[Finding]) -> bool:
    """Whether one of the findings is a GPU."""
    return any(finding.name.startswith("GPU ") for finding in findings)


def _attempt(probe: Callable[[], T]) -> T | Exception:
    try:
        return probe()
    except Exception as error:
        return error


def _text(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _gpus_of(driver: Driver | Exception | None) -> tuple[Gpu, ...]:
    return driver.gpus if isinstance(driver, Driver) else ()


def _extra(driver: Driver | Exception | None) -> str:
    """The command that installs what fits this driver's CUDA."""
    major = driver.cuda[0] if isinstance(driver, Driver) else 13
    return f'pip install "sgemm[cuda{min(max(major, 12), 13)}]"'


def _python(version: tuple[int, int, int]) -> Finding:
    if version[:2] < OLDEST_PYTHON:
        return Finding(
            "Python",
            "problem",
            _dotted(version),
            f"sgemm needs Python {_dotted(OLDEST_PYTHON)} or later",
            "make a virtual environment with a newer Python: python3.11 -m venv .venv",
        )
    return Finding("Python", "ok", _dotted(version))


def _numpy(version: str | None) -> Finding:
    if version is None:
        return Finding(
            "NumPy", "problem", "not installed", "sgemm cannot work without", "pip install numpy"
        )
    return Finding("NumPy", "ok", version)


def _driver(driver: Driver | Exception | None) -> Finding:
    name = "NVIDIA driver"
    if driver is None:
        return Finding(name, "absent", "no libcuda.so.1")
    if isinstance(driver, Exception):
        return Finding(name, "problem", _text(driver), "it could not be examined", "nvidia-smi")
    seen = f"{driver.release}, supports CUDA up to {_dotted(driver.cuda)}"
    if driver.failure:
        return Finding(
            name,
            "problem",
            f"{seen}; does not start: {driver.failure}",
            "no kernel can run on a GPU",
            "nvidia-smi (the driver's own view; if it fails too, restart or reinstall the driver)",
        )
    return Finding(name, "ok", seen)


def _gpus(
    driver: Driver | Exception | None, nvrtc: tuple[str, list[str]] | Exception
) -> list[Finding]:
    gpus = _gpus_of(driver)
    if not gpus:
        return [
            Finding(
                "GPU",
                "absent",
                "none visible",
                "kernels run in the simulator, which checks them but measures no speed",
                "install NVIDIA's driver; in a container: docker run --gpus all …",
            )
        ]
    return [_gpu_finding(index, gpu, nvrtc, _extra(driver)) for index, gpu in enumerate(gpus)]


def _gpu_finding(
    index: int, gpu: Gpu, nvrtc: tuple[str, list[str]] | Exception, extra: str
) -> Finding:
    name = f"GPU {index}"
    seen = f"{gpu.name}, compute capability {_dotted(gpu.capability)}"
    oldest = min(version.min_compute_capability for version in LADDER.values())
    if gpu.capability < oldest:
        return Finding(
            name,
            "problem",
            seen,
            f"every kernel needs compute capability {_dotted(oldest)} or later",
            "use a newer GPU: CUDA_VISIBLE_DEVICES selects one",
        )
    if not isinstance(nvrtc, Exception):
        release, architectures = nvrtc
        if "sm_{}{}".format(*gpu.capability) not in architectures:
            return Finding(
                name,
                "problem",
                seen,
                f"NVRTC {release} does not compile for it; it knows {', '.join(architectures)}",
                f"{extra} --upgrade --upgrade-strategy eager",
            )
    return Finding(name, "ok", seen)


def _nvrtc(nvrtc: tuple[str, list[str]] | Exception, driver: Driver | Exception | None) -> Finding:
    if isinstance(nvrtc, Exception):
        if _gpus_of(driver):
            why = "without it nothing compiles for the GPU"
            return Finding("NVRTC", "problem", _text(nvrtc), why, _extra(driver))
        why = "needed only to compile and inspect GPU code"
        return Finding("NVRTC", "absent", _text(nvrtc), why, 'pip install "sgemm[static]"')
    release, architectures = nvrtc
    seen = f"{release}, compiles for {', '.join(architectures)}"
    if isinstance(driver, Driver) and int(release.split(".")[0]) > driver.cuda[0]:
        return Finding(
            "NVRTC",
            "problem",
            seen,
            f"the driver supports CUDA up to {_dotted(driver.cuda)}, an older major: it does not "
            "load what this NVRTC compiles",
            "update the driver" + (f", or: {_extra(driver)}" if driver.cuda >= (12, 0) else ""),
        )
    return Finding("NVRTC", "ok", seen)


def _cupy(wheels: dict[str, str], driver: Driver | Exception | None) -> Finding:
    if wheels:
        return Finding("CuPy", "ok", ", ".join(f"{n} {version}" for n, version in wheels.items()))
    if _gpus_of(driver):
        why = "it holds the arrays on the GPU and launches the kernels"
        return Finding("CuPy", "problem", "not installed", why, _extra(driver))
    return Finding("CuPy", "absent", "not installed", "needed only with a GPU")


def _cpp_compiler(found: str | Exception, driver: Driver | Exception | None) -> Finding:
    name = "C++ compiler"
    if not isinstance(found, Exception):
        return Finding(name, "ok", found)
    chosen = os.environ.get("CXX", "").strip()
    repair = "unset CXX, or set it to a C++ compiler" if chosen else "sudo apt install g++"
    if _gpus_of(driver):
        why = "needed only for NumPy arrays, which run in the simulator"
        return Finding(name, "absent", _text(found), why, repair)
    why = "the simulator compiles the kernels with it"
    return Finding(name, "problem", _text(found), why, repair)


def _cache_folder(folder: Path | Exception) -> Finding:
    if isinstance(folder, Exception):
        why = "compiled kernels are kept there"
        repair = "export SGEMM_CACHE_DIR=…, a folder that you alone can write"
        return Finding("cache folder", "problem", _text(folder), why, repair)
    return Finding("cache folder", "ok", str(folder))


def _nvcc(found: tuple[str, str] | Exception | None) -> Finding:
    if isinstance(found, tuple):
        path, release = found
        return Finding("nvcc", "ok", f"{release} at {path}", "not used here")
    seen = "not on PATH" if found is None else _text(found)
    return Finding("nvcc", "absent", seen, "not needed here")


def environment(probes: Probes | None = None) -> dict[str, Any]:
    """What a document says about where it was made; None for what is absent."""
    probes = probes or Probes()
    driver = _attempt(probes.driver)
    nvrtc = _attempt(probes.nvrtc)
    cpp_compiler = _attempt(probes.cpp_compiler)
    known = driver if isinstance(driver, Driver) else None
    return {
        **report.base_environment(),
        "numpy": probes.package("numpy"),
        "gpus": [asdict(gpu) for gpu in _gpus_of(driver)],
        "driver": known and known.release,
        "driver_cuda": known and _dotted(known.cuda),
        "nvrtc": None if isinstance(nvrtc, Exception) else nvrtc[0],
        "cupy": next(filter(None, map(probes.package, CUPY_WHEELS)), None),
        "cpp_compiler": None if isinstance(cpp_compiler, Exception) else cpp_compiler,
    }
