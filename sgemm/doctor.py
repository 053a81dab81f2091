"""Examines the environment: what ``sgemm`` needs, what is there, and how to repair it."""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from . import causes, report
from .causes import Cause
from .errors import first_line
from .probes import Board, Driver, Gpu, Host, Probes
from .releases import FIRST_RELEASE, MINIMUM_DRIVER, dotted, parse
from .versions import oldest

T = TypeVar("T")
Nvrtc = tuple[str, list[str]]

OLDEST_PYTHON = (3, 11)
_FOR_A_GPU = ("NVIDIA driver", "GPU", "NVRTC", "CuPy")

LOW_CLOCK = 0.8
"""Clocks below this share of the highest are called low."""

CUDA_NUMBERS = (
    "`nvcc -V` shows the CUDA toolkit that is installed; `nvidia-smi` shows the newest CUDA that "
    "the driver supports. They are two things, so they may differ, and neither is wrong. sgemm "
    "uses neither nvcc nor its toolkit: the NVRTC wheel compiles the kernels. What matters here is "
    "that NVRTC knows the GPU's compute capability and that the driver supports NVRTC's CUDA major."
)


@dataclass(frozen=True)
class Finding:
    """One thing examined: what was seen, why it matters, and the command that repairs it.

    A problem keeps something from working; a warning spoils measurements, or other packages; what
    is absent is not needed, or there is nothing to repair.
    """

    name: str
    verdict: Literal["ok", "warning", "problem", "absent"]
    seen: str
    why: str = ""
    repair: str = ""

    @property
    def advice(self) -> str:
        """Why it matters and how to repair it, as one sentence; empty where there is nothing."""
        return f"{self.why}; repair: {self.repair}" if self.repair else self.why

    @property
    def line(self) -> str:
        """All of it on one line."""
        return f"{self.name}: {self.seen}" + (f": {self.advice}" if self.advice else "")


def examine(probes: Probes | None = None) -> list[Finding]:
    """Every finding about this environment; a probe that fails is a finding too."""
    probes = probes or Probes()
    driver = _attempt(probes.driver)
    nvrtc = _attempt(probes.nvrtc)
    host = _attempt(probes.host)
    boards = _attempt(probes.boards)
    wheels = _attempt(probes.cupy_wheels)
    cpp_compiler, binutils = _attempt(probes.cpp_compiler), _attempt(probes.binutils)
    gpus, compiler = _gpus(driver, nvrtc, host, boards), _nvrtc(nvrtc, driver)
    return [
        _python(probes.python),
        _numpy(_attempt(probes.numpy)),
        _driver(driver),
        *gpus,
        *_fit(driver, nvrtc, [*gpus, compiler]),
        *_state(driver, host, boards),
        compiler,
        _cupy(wheels, driver, probes.cupy),
        *_headers(_attempt(probes.headers), wheels),
        *_toolkit(_attempt(probes.toolkit), nvrtc),
        _for_the_simulator("C++ compiler", cpp_compiler, causes.CPP_COMPILER_MISSING, driver),
        _for_the_simulator("binutils", binutils, causes.BINUTILS_MISSING, driver),
        _nvdisasm(_attempt(probes.nvdisasm)),
        _cache_folder(_attempt(probes.cache_folder)),
        _nvcc(_attempt(probes.nvcc)),
    ]


def has_gpu(findings: list[Finding]) -> bool:
    """Whether one of the findings is a GPU."""
    return any(finding.name.startswith("GPU ") for finding in findings)


def why_no_gpu(findings: list[Finding]) -> str:
    """Why nothing runs on a GPU here, in one line."""
    concerned = [f for f in findings if f.name in _FOR_A_GPU or f.name.startswith("GPU ")]
    problems = [finding for finding in concerned if finding.verdict == "problem"]
    absent = [finding for finding in concerned if finding.name == "GPU"]
    return next((finding.line for finding in problems + absent), "CuPy finds none")


def _attempt(probe: Callable[[], T]) -> T | Exception:
    try:
        return probe()
    except Exception as error:
        return error


def _cause(error: Exception, why: str, repair: str) -> Cause:
    """The cause that an error of the package carries; that of another error is its text."""
    carried = error.args[0] if error.args else None
    return carried if isinstance(carried, Cause) else Cause(first_line(error), why, repair)


def _finding(name: str, verdict: Literal["warning", "problem", "absent"], cause: Cause) -> Finding:
    return Finding(name, verdict, cause.seen, cause.why, cause.repair)


def _gpus_of(driver: Driver | Exception | None) -> tuple[Gpu, ...]:
    return driver.gpus if isinstance(driver, Driver) else ()


def _starts(driver: Driver | Exception | None) -> bool:
    """Whether there is a driver that starts, be it to find no GPU."""
    return isinstance(driver, Driver) and driver.status in (0, causes.NO_DEVICE)


def _install(driver: Driver | Exception | None) -> str:
    """The command that installs what fits this driver's CUDA."""
    return causes.install_for(driver.cuda[0] if isinstance(driver, Driver) else 13)


def _python(version: tuple[int, int, int]) -> Finding:
    if version[:2] < OLDEST_PYTHON:
        facts = {"version": dotted(version), "oldest": dotted(OLDEST_PYTHON)}
        return _finding("Python", "problem", causes.PYTHON_TOO_OLD.of(**facts))
    return Finding("Python", "ok", dotted(version))


def _numpy(version: str | Exception) -> Finding:
    if isinstance(version, str):
        return Finding("NumPy", "ok", version)
    missing = isinstance(version, ModuleNotFoundError) and version.name == "numpy"
    broken = causes.NUMPY_BROKEN.of(detail=first_line(version))
    return _finding("NumPy", "problem", causes.NUMPY_MISSING if missing else broken)


def _driver(driver: Driver | Exception | None) -> Finding:
    name = "NVIDIA driver"
    if driver is None:
        return Finding(name, "absent", "no libcuda.so.1")
    if isinstance(driver, Exception):
        return _finding(name, "problem", _cause(driver, "it could not be examined", "nvidia-smi"))
    seen = f"{driver.release}, supports CUDA up to {dotted(driver.cuda)}"
    if driver.status == causes.NO_DEVICE:  # which is not the driver's fault: see the GPU
        return Finding(name, "ok", f"{seen}; finds no GPU")
    if driver.status:
        cause = causes.of_cuda_error(driver.status, driver.failure)
        seen = f"{seen}; does not start: error {driver.status}: {driver.failure}"
        return Finding(name, "problem", seen, cause.why, f"{cause.repair}; see also nvidia-smi")
    if driver.cuda < (12, 0):
        facts = {"driver": driver.release, "cuda": dotted(driver.cuda)}
        return _finding(name, "problem", causes.DRIVER_BEFORE_CUDA_12.of(**facts))
    return Finding(name, "ok", seen)


def _gpus(
    driver: Driver | Exception | None,
    nvrtc: Nvrtc | Exception,
    host: Host | Exception,
    boards: list[Board] | Exception,
) -> list[Finding]:
    if gpus := _gpus_of(driver):
        return [_gpu(index, gpu, nvrtc) for index, gpu in enumerate(gpus)]
    if hidden := _hidden(driver, host, boards):
        return [_finding("GPU", "problem", hidden)]
    if driver is not None and not _starts(driver):
        return [Finding("GPU", "absent", causes.NO_GPU.seen, "the driver is not usable, see there")]
    return [_finding("GPU", "absent", causes.NO_GPU)]


def _gpu(index: int, gpu: Gpu, nvrtc: Nvrtc | Exception) -> Finding:
    name = f"GPU {index}"
    seen = f"{gpu.name}, compute capability {dotted(gpu.capability)}"
    needed = oldest().min_compute_capability
    if not isinstance(nvrtc, Exception):
        arch = "sm_{}{}".format(*gpu.capability)
        if cause := causes.of_architecture(arch, *nvrtc, needed, gpu=seen):
            return _finding(name, "problem", cause)
    elif gpu.capability < needed:
        below = causes.GPU_BELOW_LADDER.of(gpu=seen, oldest=dotted(needed))
        return _finding(name, "problem", below)
    return Finding(name, "ok", seen)


def _fit(
    driver: Driver | Exception | None, nvrtc: Nvrtc | Exception, findings: list[Finding]
) -> list[Finding]:
    """The three numbers that must fit, side by side; ``findings`` tell whether they do."""
    if not isinstance(driver, Driver) or not driver.gpus or isinstance(nvrtc, Exception):
        return []
    release, major = nvrtc[0], parse(nvrtc[0])[0]
    lines = []
    for capability in sorted({gpu.capability for gpu in driver.gpus}):
        first = FIRST_RELEASE.get(capability)
        needed = f"CUDA {dotted(first)} or later" if first else "a CUDA newer than known here"
        lines.append(f"compute capability {dotted(capability)} needs {needed}")
    needed = f"driver {MINIMUM_DRIVER[major]} or later" if major in MINIMUM_DRIVER else "a driver"
    here = f"{driver.release}, for CUDA up to {dotted(driver.cuda)}"
    lines += [f"NVRTC is {release}", f"CUDA {major} needs {needed} (here {here})"]
    name, seen = "GPU, NVRTC, driver", "; ".join(lines)
    for finding in findings:
        if finding.verdict == "problem":
            return [Finding(name, "problem", seen, finding.why, finding.repair)]
    return [Finding(name, "ok", seen)]


def _hidden(
    driver: Driver | Exception | None, host: Host | Exception, boards: list[Board] | Exception
) -> Cause | None:
    """What keeps this process from seeing a GPU that may be there; None where nothing does."""
    if isinstance(host, Exception):
        return None
    named = host.variables.get("NVIDIA_VISIBLE_DEVICES")
    if host.container and named in ("", "none", "void"):
        return causes.NVIDIA_VISIBLE_DEVICES_HIDES.of(value=named)
    if driver is None:
        if host.container and host.kernel_module:
            return causes.CONTAINER_WITHOUT_GPU.of(lacking="no libcuda.so.1")
        if host.kernel_module:
            return causes.LIBCUDA_MISSING
        if host.gpus_on_bus:
            gpus = "an NVIDIA GPU" if host.gpus_on_bus == 1 else f"{host.gpus_on_bus} NVIDIA GPUs"
            return causes.NO_DRIVER.of(count=gpus)
        return None
    if host.denied:
        file, detail = host.denied
        return causes.DEVICE_FILES_DENIED.of(file=file, detail=detail)
    if not host.device_files:
        if host.container:
            return causes.CONTAINER_WITHOUT_GPU.of(lacking="no /dev/nvidiactl")
        return causes.DEVICE_FILES_MISSING
    if not _starts(driver):
        return None
    named = host.variables.get("CUDA_VISIBLE_DEVICES")
    split = [board.name for board in boards if board.mig] if isinstance(boards, list) else []
    if split and named not in ("", "-1"):  # a number names a GPU, and only instances are visible
        return causes.MIG_WITHOUT_INSTANCE.of(gpu=split[0])
    return None if named is None else causes.CUDA_VISIBLE_DEVICES_HIDES.of(value=named)


def _state(
    driver: Driver | Exception | None, host: Host | Exception, boards: list[Board] | Exception
) -> list[Finding]:
    """What measuring depends on, of the GPUs that programs see."""
    visible = [gpu.pci_bus_id.lower() for gpu in _gpus_of(driver)]
    findings = []
    for board in boards if isinstance(boards, list) else ():
        if board.pci_bus_id.lower() in visible:
            gpu = f"GPU {visible.index(board.pci_bus_id.lower())}"
            disturbing = [
                _finding(f"state of {gpu}", "warning", cause) for cause in _disturbances(gpu, board)
            ]
            findings += disturbing or [Finding(f"state of {gpu}", "ok", _clock(board))]
    if isinstance(boards, Exception):
        findings.append(
            Finding("state of the GPUs", "absent", first_line(boards), "it cannot be told")
        )
    if visible and isinstance(host, Host) and host.counters is not None:
        name = "GPU counters"
        denied = _finding(name, "warning", causes.COUNTERS_DENIED)
        findings.append(Finding(name, "ok", "may be read") if host.counters else denied)
    return findings


def _clock(board: Board) -> str:
    others = "who uses it is not told" if board.processes is None else "nobody else uses it"
    if board.sm_mhz is None or board.max_sm_mhz is None:
        return others
    idle = ", idle" if board.idle else ""
    return f"{board.sm_mhz} of {board.max_sm_mhz} MHz{idle}; {others}"


def _disturbances(gpu: str, board: Board) -> list[Cause]:
    found = []
    if board.mig:
        found.append(causes.MIG.of(gpu=gpu))
    if board.persistence is False:
        found.append(causes.PERSISTENCE_OFF.of(gpu=gpu))
    if board.processes:
        count, ids = len(board.processes), ", ".join(map(str, board.processes))
        others = "1 process" if count == 1 else f"{count} processes"
        found.append(causes.OTHER_PROCESS.of(gpu=gpu, processes=f"{others} ({ids})"))
    mhz, most = board.sm_mhz, board.max_sm_mhz
    if mhz and most and mhz < LOW_CLOCK * most and not board.idle:
        cool = "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE; cool it, or raise its power limit"
        unlock = "sudo nvidia-smi --reset-gpu-clocks; sudo nvidia-smi -rac"
        facts = {
            "gpu": gpu,
            "mhz": mhz,
            "most": most,
            "reasons": ", ".join(board.throttled) or "for no reason that it tells",
            "repair": unlock if "clock setting" in board.throttled else cool,
        }
        found.append(causes.CLOCKS_LOW.of(**facts))
    return found


def _nvrtc(nvrtc: Nvrtc | Exception, driver: Driver | Exception | None) -> Finding:
    if isinstance(nvrtc, Exception):
        cause = _cause(nvrtc, causes.NVRTC_MISSING.why, _install(driver))
        if _gpus_of(driver):
            return Finding("NVRTC", "problem", cause.seen, cause.why, _install(driver))
        return _finding("NVRTC", "absent", cause)
    release, architectures = nvrtc
    if isinstance(driver, Driver) and (major := parse(release)[0]) > driver.cuda[0]:
        facts = {
            "release": release,
            "driver": dotted(driver.cuda),
            "repair": causes.repair_for_driver(driver.cuda, major),
        }
        return _finding("NVRTC", "problem", causes.NVRTC_NEWER_THAN_DRIVER.of(**facts))
    return Finding("NVRTC", "ok", f"{release}, compiles for {', '.join(architectures)}")


def _cupy(
    wheels: dict[str, str] | Exception,
    driver: Driver | Exception | None,
    import_cupy: Callable[[], str],
) -> Finding:
    if isinstance(wheels, Exception):
        return Finding(
            "CuPy", "problem", first_line(wheels), "it could not be examined", "pip check"
        )
    if not wheels:
        if not _gpus_of(driver):
            return Finding("CuPy", "absent", "not installed", "needed only with a GPU")
        cause = causes.CUPY_MISSING.of(detail="not installed", install=_install(driver))
        return _finding("CuPy", "problem", cause)
    seen = ", ".join(f"{name} {version}" for name, version in wheels.items())
    if len(wheels) > 1:
        names = " ".join(wheels)
        facts = {"wheels": seen, "names": names, "install": _install(driver)}
        return _finding("CuPy", "problem", causes.CUPY_TWICE.of(**facts))
    (name,) = wheels
    if name.startswith("cupy-rocm"):
        facts = {"wheel": seen, "name": name, "install": _install(driver)}
        return _finding("CuPy", "problem", causes.CUPY_FOR_ROCM.of(**facts))
    major = _cuda_of(name)
    if major is not None and major < 12:
        facts = {"wheel": seen, "name": name, "major": str(major), "install": _install(driver)}
        return _finding("CuPy", "problem", causes.CUPY_BEFORE_CUDA_12.of(**facts))
    if major is not None and isinstance(driver, Driver) and major > driver.cuda[0]:
        facts = {
            "wheel": seen,
            "driver": dotted(driver.cuda),
            "major": str(major),
            "minimum": MINIMUM_DRIVER.get(major, "the newest"),
            "repair": causes.repair_for_driver(driver.cuda, major),
        }
        return _finding("CuPy", "problem", causes.CUPY_NEWER_THAN_DRIVER.of(**facts))
    if isinstance(imported := _attempt(import_cupy), Exception):
        broken = causes.of_cupy_import(imported)
        return Finding("CuPy", "problem", f"{seen}: {broken.seen}", broken.why, broken.repair)
    return Finding("CuPy", "ok", seen)


def _cuda_of(wheel: str) -> int | None:
    """The CUDA major that a wheel of CuPy is for, by its name; old ones are for a minor release."""
    found = re.fullmatch(r"cupy-cuda(\d+)(x?)", wheel)
    if found is None:
        return None
    return int(found[1]) if found[2] else int(found[1]) // 10


def _headers(folder: str | Exception | None, wheels: dict[str, str] | Exception) -> list[Finding]:
    """Only CuPy needs them."""
    if isinstance(wheels, Exception) or not wheels:
        return []
    if isinstance(folder, str):
        return [Finding("CUDA headers", "ok", folder)]
    major = 12 if "cupy-cuda12x" in wheels else 13
    cause = causes.HEADERS_MISSING.of(package=causes.runtime_package(major))
    return [_finding("CUDA headers", "warning", cause)]


def _toolkit(named: tuple[str, str] | Exception | None, nvrtc: Nvrtc | Exception) -> list[Finding]:
    """Where CUDA_PATH or CUDA_HOME is set, whether it leads anywhere."""
    if named is None or isinstance(named, Exception):
        return []
    variable, path = named
    release = causes.toolkit_release(path)
    if release is None:
        return [
            _finding(variable, "warning", causes.CUDA_PATH_STALE.of(variable=variable, path=path))
        ]
    if not isinstance(nvrtc, Exception) and release[0] != (major := parse(nvrtc[0])[0]):
        facts = {
            "variable": variable,
            "path": path,
            "toolkit": dotted(release),
            "other": f"NVRTC {nvrtc[0]}",
            "major": str(major),
        }
        return [_finding(variable, "warning", causes.CUDA_PATH_OTHER_MAJOR.of(**facts))]
    return [Finding(variable, "ok", f"{path}, CUDA {dotted(release)}")]


def _for_the_simulator(
    name: str, found: str | Exception, missing: Cause, driver: Driver | Exception | None
) -> Finding:
    """What a machine with a GPU may do without."""
    if isinstance(found, str):
        return Finding(name, "ok", found)
    if isinstance(found, ImportError):  # of NumPy, which is a finding of its own
        return Finding(name, "absent", "not looked for without NumPy")
    cause = _cause(found, missing.why, missing.repair)
    return _finding(name, "absent" if _gpus_of(driver) else "problem", cause)


def _nvdisasm(found: str | Exception | None) -> Finding:
    if isinstance(found, str):
        return Finding("nvdisasm", "ok", found)
    missing = causes.NVDISASM_MISSING
    cause = missing if found is None else _cause(found, missing.why, missing.repair)
    return _finding("nvdisasm", "absent", cause)


def _cache_folder(folder: Path | Exception) -> Finding:
    if isinstance(folder, Exception):
        general = causes.CACHE_FOLDER_UNUSABLE
        repair = "export SGEMM_CACHE_DIR=…, a folder that you alone can write"
        return _finding("cache folder", "problem", _cause(folder, general.why, repair))
    return Finding("cache folder", "ok", str(folder))


def _nvcc(found: tuple[str, str] | Exception | None) -> Finding:
    if isinstance(found, tuple):
        path, release = found
        return Finding("nvcc", "ok", f"{release} at {path}", "not used here")
    seen = "not on PATH" if found is None else first_line(found)
    return Finding("nvcc", "absent", seen, "not needed here")


def environment(probes: Probes | None = None) -> dict[str, Any]:
    """What a document says about where it was made; None for what is absent."""
    probes = probes or Probes()
    driver = _attempt(probes.driver)
    nvrtc = _attempt(probes.nvrtc)
    wheels = _attempt(probes.cupy_wheels)
    cpp_compiler, numpy = _attempt(probes.cpp_compiler), _attempt(probes.numpy)
    known = driver if isinstance(driver, Driver) else None
    return {
        **report.base_environment(),
        "numpy": None if isinstance(numpy, Exception) else numpy,
        "gpus": [asdict(gpu) for gpu in _gpus_of(driver)],
        "driver": known and known.release,
        "driver_cuda": known and dotted(known.cuda),
        "nvrtc": None if isinstance(nvrtc, Exception) else nvrtc[0],
        "cupy": None if isinstance(wheels, Exception) else next(iter(wheels.values()), None),
        "cpp_compiler": None if isinstance(cpp_compiler, Exception) else cpp_compiler,
    }
