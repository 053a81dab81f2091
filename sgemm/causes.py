"""Why something does not work here and what repairs it: the sentences that the package's errors and
``python -m sgemm doctor`` share. docs/errors.md lists them all.

In each text ``{name}`` stands for what varies. Imports neither NumPy nor CUDA.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from .errors import (
    GpuUnusableError,
    KernelError,
    MissingError,
    OutOfMemoryError,
    SgemmError,
    first_line,
    in_one_line,
)
from .releases import (
    FIRST_RELEASE,
    LAST_RELEASE,
    MINIMUM_DRIVER,
    Capability,
    Release,
    capability_of,
    dotted,
    parse,
)


@dataclass(frozen=True)
class Cause:
    """What was seen, why it matters, and the command (or act) that repairs it."""

    seen: str
    why: str
    repair: str

    def of(self, **facts: object) -> "Cause":
        """The cause with what varies filled in, each fact on one line."""
        lines = {name: " ".join(str(fact).splitlines()) for name, fact in facts.items()}
        return Cause(*(text.format(**lines) for text in (self.seen, self.why, self.repair)))

    def __str__(self) -> str:
        return f"{self.seen}: {self.why}; repair: {self.repair}"


# --- the compiler and the GPU ---

ARCHITECTURE_UNKNOWN = Cause(
    "{arch}",
    "NVRTC {release} knows no such architecture; it knows {known}",
    "pass one of these, such as 'sm_90'",
)
GPU_TOO_NEW = Cause(
    "{gpu}",
    "compiling for it needs CUDA {first} or later, and NVRTC here is {release}, which knows "
    "{known}",
    'pip install --upgrade "{package}>={first}"',
)
GPU_TOO_OLD = Cause(
    "{gpu}",
    "NVRTC {release}, which knows {known}, is too new for this GPU: CUDA {last} is the last that "
    "compiles for it; and every kernel needs compute capability {oldest} or later",
    "use a newer GPU; CUDA_VISIBLE_DEVICES selects one",
)
GPU_BELOW_LADDER = Cause(
    "{gpu}",
    "every kernel needs compute capability {oldest} or later",
    "use a newer GPU; CUDA_VISIBLE_DEVICES selects one",
)
GPU_NOT_COMPILED_FOR = Cause(
    "{gpu}",
    "NVRTC {release} does not compile for it; it knows {known}",
    'pip install --upgrade "{package}"',
)
NVRTC_MISSING = Cause(
    "no NVRTC to compile kernels with ({detail})",
    "without it nothing compiles for a GPU",
    "{install}",
)
NVRTC_NEWER_THAN_DRIVER = Cause(
    "NVRTC {release}, and a driver for CUDA up to {driver}",
    "a driver does not load what the NVRTC of a later CUDA major compiles",
    "{repair}",
)
NVRTC_FAILED = Cause(
    "NVRTC {release} answers {status}",
    "the compiler itself failed, not the kernel",
    'pip install --force-reinstall "{package}"',
)
CUDA_PATH_STALE = Cause(
    "{variable}={path}",
    "it holds no CUDA toolkit (no include/cuda.h), so NVRTC and headers that no wheel brings are "
    "looked for in vain there",
    "unset {variable}",
)
CUDA_PATH_OTHER_MAJOR = Cause(
    "{variable}={path}",
    "it holds CUDA {toolkit}, and {other} is for CUDA {major}: mixed headers do not compile",
    "unset {variable}",
)
HEADERS_MISSING = Cause(
    "no CUDA headers (vector_types.h)",
    "CuPy compiles its own kernels with them, for arithmetic and random numbers; "
    "sgemm's own need none",
    "pip install {package}",
)
HEADER_NOT_FOUND = Cause(
    "a header cannot be opened",
    "a kernel sees the headers beside its file and the ladder's; no CUDA header, neither a "
    "toolkit's nor those of the package nvidia-cuda-runtime",
    "copy the header beside the kernel, or do without it",
)

# --- CuPy ---

CUPY_MISSING = Cause(
    "no CuPy ({detail})", "it holds the arrays on a GPU and launches the kernels", "{install}"
)
ONE_CUPY_OF_TWO = (
    "pip install cupy-cuda13x, or cupy-cuda12x: python -m sgemm doctor tells which fits the driver"
)
CUPY_BROKEN = Cause(
    "CuPy cannot be imported ({detail})",
    "it holds the arrays on a GPU and launches the kernels",
    "pip install --force-reinstall the wheel; python -m sgemm doctor tells whether another fits",
)
CUPY_CACHE_FOLDER_UNUSABLE = Cause(
    "CuPy cannot make its cache folder {folder} ({detail})",
    "it keeps its own compiled kernels there, and is not imported without",
    "export CUPY_CACHE_DIR=…, a folder that you can write",
)
CUPY_COMPILES_NOTHING = Cause(
    "CuPy cannot compile its own kernels ({detail})",
    "it has some for arithmetic and random numbers; sgemm's own are compiled without CuPy",
    "python -m sgemm doctor tells whether the CUDA headers, or NVRTC, are missing",
)
CUPY_TWICE = Cause(
    "{wheels}",
    "they are one package, cupy, for two CUDA majors: whichever was installed last overwrote part "
    "of the other",
    "pip uninstall -y {names}; {install}",
)
CUPY_FOR_ROCM = Cause("{wheel}", "it is for AMD's GPUs", "pip uninstall -y {name}; {install}")
CUPY_BEFORE_CUDA_12 = Cause(
    "{wheel}",
    "it is for CUDA {major}, and sgemm for CUDA 12 and 13",
    "pip uninstall -y {name}; {install}",
)
CUPY_NEWER_THAN_DRIVER = Cause(
    "{wheel} with a driver for CUDA up to {driver}",
    "the wheel needs a driver for CUDA {major}, {minimum} or later: every call would fail with "
    "cudaErrorInsufficientDriver",
    "{repair}",
)

# --- the driver and the GPU's visibility ---

DRIVER_BEFORE_CUDA_12 = Cause(
    "driver {driver}, for CUDA up to {cuda}",
    "CuPy and NVRTC here need CUDA 12 or 13, so a driver of 525.60.13 or later",
    "install a newer NVIDIA driver, such as sudo apt install nvidia-driver-580",
)
NO_GPU = Cause(
    "none visible",
    "kernels run in the simulator, which checks them but measures no speed",
    "install a GPU and NVIDIA's driver",
)
NO_DRIVER = Cause(
    "{count} on the PCI bus, and no libcuda.so.1",
    "NVIDIA's driver is not installed",
    "install it, such as with sudo apt install nvidia-driver-580, and restart",
)
CONTAINER_WITHOUT_GPU = Cause(
    "the host has NVIDIA's driver, and this container has {lacking}",
    "the container was started without the GPU",
    "docker run --gpus all … (the host needs the NVIDIA Container Toolkit)",
)
LIBCUDA_BROKEN = Cause(
    "libcuda.so.1 is there, and cannot be used ({detail})",
    "the driver's library is damaged; or it is the empty file that is left in an image which was "
    "built where GPUs are handed over",
    "install the driver's libraries anew, such as sudo apt install --reinstall "
    "libnvidia-compute-580; in an image find / -name 'libcuda.so*' -size 0 -delete",
)
LIBCUDA_MISSING = Cause(
    "NVIDIA's kernel module is loaded, and there is no libcuda.so.1",
    "the driver's libraries are not installed, or not found",
    "install those of the module's version (cat /proc/driver/nvidia/version), then sudo ldconfig",
)
DEVICE_FILES_MISSING = Cause(
    "no /dev/nvidiactl",
    "NVIDIA's kernel module is not loaded",
    "sudo modprobe nvidia && sudo nvidia-modprobe -c 0 -u",
)
DEVICE_FILES_DENIED = Cause(
    "{file} cannot be opened ({detail})",
    "this user or this container has no access to the GPU; a container loses it when the host's "
    "systemd reloads",
    "restart the container, or outside of one: sudo usermod -aG video,render $USER, and log in "
    "again",
)
NVIDIA_VISIBLE_DEVICES_HIDES = Cause(
    "NVIDIA_VISIBLE_DEVICES={value}",
    "it tells the container runtime to hand over no GPU",
    "docker run --gpus all -e NVIDIA_VISIBLE_DEVICES=all …",
)
CUDA_VISIBLE_DEVICES_HIDES = Cause(
    "CUDA_VISIBLE_DEVICES={value}",
    "it names no GPU of this machine, so CUDA programs see none",
    "unset CUDA_VISIBLE_DEVICES",
)
MIG_WITHOUT_INSTANCE = Cause(
    "{gpu} is in MIG mode, and no instance is visible",
    "in that mode CUDA programs see only instances",
    "nvidia-smi -L lists them for CUDA_VISIBLE_DEVICES; or sudo nvidia-smi -mig 0 leaves the mode",
)

# --- what only measuring suffers from ---

MIG = Cause(
    "{gpu} is in MIG mode",
    "an instance has a part of the GPU's SMs and bandwidth: its figures do not compare with the "
    "whole GPU's",
    "sudo nvidia-smi -mig 0",
)
PERSISTENCE_OFF = Cause(
    "{gpu}: persistence mode is off",
    "the driver unloads between programs: each starts seconds later, and locked clocks are "
    "forgotten",
    "sudo nvidia-smi -pm 1",
)
OTHER_PROCESS = Cause(
    "{gpu}: used by {processes}",
    "what else computes there is measured too, and takes memory",
    "nvidia-smi lists them; wait for their end, or stop them",
)
CLOCKS_LOW = Cause(
    "{gpu}: {mhz} of {most} MHz ({reasons})",
    "figures would be that much lower",
    "{repair}",
)
COUNTERS_DENIED = Cause(
    "RmProfilingAdminOnly: 1",
    "only an administrator may read the GPU's counters: Nsight Compute stops with ERR_NVGPUCTRPERM",
    "profile as root, in a container with --cap-add=SYS_ADMIN; or echo 'options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia-counters.conf, and "
    "restart",
)

# --- the rest of the machine ---

PYTHON_TOO_OLD = Cause(
    "{version}",
    "sgemm needs Python {oldest} or later",
    "make a virtual environment with a newer Python: python3.11 -m venv .venv",
)
NUMPY_MISSING = Cause("not installed", "sgemm cannot work without", "pip install numpy")
NUMPY_BROKEN = Cause(
    "cannot be imported ({detail})",
    "sgemm cannot work without",
    "pip install --force-reinstall numpy",
)
CPP_COMPILER_MISSING = Cause(
    "there is no C++ compiler",
    "the simulator compiles the kernels with it, for NumPy arrays",
    "sudo apt install g++ (or dnf install gcc-c++), or set CXX to its path",
)
CPP_COMPILER_WRONG = Cause(
    "CXX={command} is no C++ compiler that runs here",
    "the simulator compiles the kernels with it, for NumPy arrays",
    "unset CXX, or correct it",
)
NO_MEMORY = Cause(
    "no memory left ({detail})",
    "the result, and a copy of what a kernel cannot take as it is, need memory of their own",
    "a smaller product, or out= and layouts that are not copied; on a GPU "
    "cupy.get_default_memory_pool().free_all_blocks() gives back what is free",
)
BINUTILS_MISSING = Cause(
    "{tool} does not run here ({detail})",
    "the simulator's checks and counts name the lines of a kernel with it",
    "sudo apt install binutils (or dnf install binutils)",
)
NVDISASM_MISSING = Cause(
    "there is no nvdisasm", "machine code is read with it", "pip install nvidia-cuda-nvdisasm"
)
CACHE_FOLDER_UNUSABLE = Cause(
    "{folder} {objection}",
    "compiled kernels are kept there, and code is loaded from it",
    "{repair}",
)
LIBRARY_NOT_LOADED = Cause(
    "a kernel that was compiled for the simulator is not loaded ({detail})",
    "the folder that it is kept in may not run code, or memory is short",
    "export SGEMM_CACHE_DIR=… to a folder elsewhere",
)
SYSTEM_REFUSES = Cause(
    "the system refuses ({detail})",
    "compiling a kernel takes files, and a process of its own",
    "ulimit -a shows this shell's limits: raise the one that is reached, such as with ulimit -n "
    "4096; or export SGEMM_CACHE_DIR=… to a folder elsewhere",
)

# --- what the driver answers ---

_UNUSABLE = "the GPU does nothing more for this process; "
_FIND_FAULT = (
    "compute-sanitizer python … names the line; or python -m sgemm check --source FILE, or "
    "SGEMM_DEBUG=1"
)
_CAPTURE = "a graph cannot hold what the first call of a version does: compile and load it"
_WARM = "call it once before the capture, with arrays of the same layout"
_LOAD = "update the driver, or install an NVRTC no newer than it: python -m sgemm doctor"

CUDA_ERRORS = {
    2: Cause(
        "CUDA error 2, out of memory",
        "the GPU's memory is full",
        "cupy.get_default_memory_pool().free_all_blocks() gives back what is free; nvidia-smi "
        "shows who has the rest",
    ),
    3: Cause(
        "CUDA error 3, not initialized",
        "the driver was started in another process that then forked",
        "start processes with multiprocessing's spawn method",
    ),
    34: Cause(
        "CUDA error 34, stub library",
        "libcuda.so.1 is the toolkit's stub for linking, not the driver's",
        "take …/lib64/stubs out of LD_LIBRARY_PATH",
    ),
    35: Cause(
        "CUDA error 35, insufficient driver",
        "there is no NVIDIA driver, or one older than the CUDA that CuPy was built for",
        "python -m sgemm doctor tells which; update the driver, or install the CuPy wheel of its "
        "CUDA major",
    ),
    36: Cause(
        "CUDA error 36, call requires newer driver",
        "the driver is older than the CUDA release that CuPy was built for",
        "update the driver",
    ),
    46: Cause(
        "CUDA error 46, devices unavailable",
        "another process has the GPU for itself (exclusive mode), or it is resetting",
        "nvidia-smi shows who has it; sudo nvidia-smi -c 0 ends exclusive mode",
    ),
    100: Cause(
        "CUDA error 100, no device",
        "the driver sees no GPU",
        "python -m sgemm doctor tells why",
    ),
    101: Cause(
        "CUDA error 101, invalid device",
        "there is no GPU of that number",
        "nvidia-smi -L lists them; CUDA_VISIBLE_DEVICES renumbers them",
    ),
    200: Cause(
        "CUDA error 200, invalid image",
        "the driver cannot read what this NVRTC compiled: it is of an older CUDA major",
        _LOAD,
    ),
    209: Cause(
        "CUDA error 209, no binary for GPU",
        "the kernel was compiled for another compute capability than this GPU's, or the driver is "
        "too old for it",
        _LOAD,
    ),
    214: Cause(
        "CUDA error 214, uncorrectable ECC error",
        _UNUSABLE + "its memory is damaged",
        "sudo nvidia-smi --gpu-reset; have the GPU examined if it happens again",
    ),
    218: Cause(
        "CUDA error 218, invalid PTX",
        "the driver's own compiler refuses the kernel",
        _LOAD,
    ),
    222: Cause(
        "CUDA error 222, unsupported PTX version",
        "the kernel was compiled by a newer CUDA than the driver's own compiler accepts",
        _LOAD,
    ),
    700: Cause(
        "CUDA error 700, illegal address",
        _UNUSABLE + "a kernel read or wrote outside of its arrays",
        _FIND_FAULT,
    ),
    701: Cause(
        "CUDA error 701, too many resources",
        "a block needs more registers, shared memory or threads than an SM has",
        "smaller tiles or fewer threads, or __launch_bounds__",
    ),
    702: Cause(
        "CUDA error 702, launch timeout",
        _UNUSABLE + "the kernel took longer than a GPU with a display may",
        "a smaller product, or a GPU without a display",
    ),
    710: Cause(
        "CUDA error 710, assertion failed",
        _UNUSABLE + "an assertion of the kernel does not hold, and was printed",
        "correct the kernel where the assertion says",
    ),
    714: Cause(
        "CUDA error 714, hardware stack error",
        _UNUSABLE + "a kernel overflowed or corrupted its stack",
        _FIND_FAULT,
    ),
    715: Cause(
        "CUDA error 715, illegal instruction",
        _UNUSABLE + "a kernel ran an instruction that this GPU lacks",
        "compile it for this GPU's compute capability",
    ),
    716: Cause(
        "CUDA error 716, misaligned address",
        _UNUSABLE + "a kernel read or wrote a float4 off its 16-byte boundary",
        _FIND_FAULT,
    ),
    717: Cause(
        "CUDA error 717, invalid address space",
        _UNUSABLE + "a kernel used an address of another kind of memory",
        _FIND_FAULT,
    ),
    718: Cause(
        "CUDA error 718, invalid program counter",
        _UNUSABLE + "a kernel jumped to where no code is",
        _FIND_FAULT,
    ),
    719: Cause(
        "CUDA error 719, launch failure",
        _UNUSABLE + "a kernel failed in a way that the GPU does not tell",
        _FIND_FAULT,
    ),
    802: Cause(
        "CUDA error 802, system not ready",
        "GPUs behind NVSwitch need NVIDIA's fabric manager, of the driver's version",
        "sudo systemctl start nvidia-fabricmanager",
    ),
    803: Cause(
        "CUDA error 803, driver mismatch",
        "the driver's library and its kernel module are of two versions, as after an update",
        "restart the machine; in a container, restart the container",
    ),
    804: Cause(
        "CUDA error 804, compatibility not supported",
        "a cuda-compat library is loaded, which works on data-centre GPUs only",
        "take …/compat out of LD_LIBRARY_PATH, and update the driver",
    ),
    900: Cause("CUDA error 900, not permitted in a capture", _CAPTURE, _WARM),
    901: Cause("CUDA error 901, capture invalidated", _CAPTURE, _WARM),
    906: Cause("CUDA error 906, implicit dependency of a capture", _CAPTURE, _WARM),
    999: Cause(
        "CUDA error 999, unknown",
        "the driver is in disorder, often after sleep or an update",
        "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm, or restart",
    ),
}
"""CUDA's own error numbers, which its driver and its runtime share, to what they mean here."""

_CUPY_ERRORS = ("CUDARuntimeError", "CUDADriverError")
_CUPY_COMPILER_ERRORS = ("CompileException", "NVRTCError")
_NO_NVRTC = "CuPy failed to load"  # CuPy's words
_OF_THE_MACHINE = {3, 34, 35, 36, 46, 100, 101, 802, 803, 804, 999}
"""Those that no kernel is to blame for."""

OUT_OF_MEMORY = 2
NO_DEVICE = 100
"""CUDA's error numbers where a GPU's memory is full, and where the driver sees no GPU."""

OTHER_CUDA_ERROR = Cause(
    "CUDA error {status}, {text}", "CUDA refused the call", "python -m sgemm doctor"
)


def of_cuda_error(status: int, text: str) -> Cause:
    """The cause behind an error of CUDA's driver or runtime; ``text`` is CUDA's own."""
    return CUDA_ERRORS.get(status) or OTHER_CUDA_ERROR.of(status=status, text=text)


def of_cupy_import(error: Exception) -> Cause:
    """Why CuPy is not imported."""
    if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
        return CUPY_MISSING.of(detail=error, install=ONE_CUPY_OF_TWO)
    folder = os.environ.get("CUPY_CACHE_DIR", os.path.expanduser("~/.cupy/kernel_cache"))
    made = error.filename if isinstance(error, OSError) else None
    if isinstance(made, str) and Path(folder).is_relative_to(made):  # it, or what should hold it
        return CUPY_CACHE_FOLDER_UNUSABLE.of(folder=folder, detail=first_line(error))
    return CUPY_BROKEN.of(detail=first_line(error.__cause__ or error))  # below CuPy's own banner


def explain(error: Exception) -> str:
    """What an error of CuPy's, or of its import, means; another error's own text."""
    if isinstance(error, ImportError) and "cupy" in str(error).lower():
        return str(of_cupy_import(error))
    if is_cuda_error(error):
        return str(of_cuda_error(getattr(error, "status", 0), str(error)))
    return str(error)


class errors_explained:  # noqa: N801 - as that of NumPy's errstate
    """Raise in place of CuPy's errors of CUDA's driver and runtime what ``cuda_error`` makes, and
    an error of the package where CuPy or NumPy has no memory left, CuPy cannot compile, or the
    system refuses a file or a process."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, SgemmError):
            return
        if isinstance(error, MemoryError):
            cause = NO_MEMORY.of(detail=first_line(error))
            raise OutOfMemoryError(f"{self._doing}: {cause}") from error
        if is_cuda_error(error):
            raise cuda_error(error, self._doing) from error
        if isinstance(error, OSError):
            refused = SYSTEM_REFUSES.of(detail=first_line(error))
            raise MissingError(f"{self._doing}: {refused}") from error
        if isinstance(error, Exception) and _is_of_cupys_compiler(error):
            nothing = CUPY_COMPILES_NOTHING.of(detail=in_one_line(error))
            raise MissingError(f"{self._doing}: {nothing}") from error


def is_cuda_error(error: BaseException | None) -> TypeGuard[RuntimeError]:
    """Whether it is one of CuPy's for an error of CUDA's driver or runtime: known by its name, as
    CuPy is not imported for NumPy arrays."""
    return isinstance(error, RuntimeError) and type(error).__name__ in _CUPY_ERRORS


def _is_of_cupys_compiler(error: Exception) -> bool:
    kind, said = type(error).__name__, str(error)
    return kind in _CUPY_COMPILER_ERRORS or (kind == "RuntimeError" and said.startswith(_NO_NVRTC))


def cuda_error(error: Exception, doing: str) -> SgemmError:
    """What to raise in place of CuPy's ``CUDARuntimeError`` or ``CUDADriverError``, which came
    while ``doing``."""
    status = getattr(error, "status", 0)
    message = f"{doing}: {explain(error)}"
    if _UNUSABLE in message:
        return GpuUnusableError(message)
    if status == OUT_OF_MEMORY:
        return OutOfMemoryError(message)
    return MissingError(message) if status in _OF_THE_MACHINE else KernelError(message)


def of_architecture(
    arch: str, release: str, known: list[str], oldest: Capability, gpu: str = ""
) -> Cause | None:
    """Why NVRTC ``release``, which knows the architectures ``known``, does not compile for
    ``arch``; None where it does. ``oldest`` is what the kernels need, ``gpu`` what the cause calls
    the GPU."""
    facts = {"release": release, "known": ", ".join(known), "oldest": dotted(oldest)}
    capability = capability_of(arch)
    if capability is None:
        unknown = ARCHITECTURE_UNKNOWN.of(arch=repr(arch), **facts)
        return None if arch in known else unknown
    facts["gpu"] = gpu or f"{arch}, compute capability {dotted(capability)}"
    here = parse(release)
    first, last = FIRST_RELEASE.get(capability), LAST_RELEASE.get(capability)
    if last and last < here:
        return GPU_TOO_OLD.of(last=dotted(last), **facts)
    if capability < oldest:
        return GPU_BELOW_LADDER.of(**facts)
    if arch in known:
        return None
    if first and first > here:
        return GPU_TOO_NEW.of(first=dotted(first), package=nvrtc_package(first[0]), **facts)
    return GPU_NOT_COMPILED_FOR.of(package=nvrtc_package(here[0]), **facts)


def nvrtc_package(major: int) -> str:
    """The wheel that brings NVRTC of a CUDA major."""
    return "nvidia-cuda-nvrtc" if major >= 13 else f"nvidia-cuda-nvrtc-cu{major}"


def runtime_package(major: int) -> str:
    """The wheel that brings the CUDA headers of a CUDA major."""
    return "nvidia-cuda-runtime" if major >= 13 else f"nvidia-cuda-runtime-cu{major}"


def install_for(driver_major: int) -> str:
    """The command that installs what fits a driver of that CUDA major."""
    if driver_major >= 13:
        return "pip install cupy-cuda13x cuda-bindings nvidia-cuda-nvrtc nvidia-cuda-runtime"
    return (
        'pip install cupy-cuda12x "cuda-bindings<13" nvidia-cuda-nvrtc-cu12 '
        "nvidia-cuda-runtime-cu12"
    )


def repair_for_driver(driver: Release, needed_major: int) -> str:
    """How to bring together a driver and what was made for a later CUDA major."""
    update = f"update the driver to {MINIMUM_DRIVER.get(needed_major, 'a newer one')} or later"
    return f"{install_for(driver[0])}, or {update}" if driver >= (12, 0) else update


def named_toolkit() -> tuple[str, str] | None:
    """The variable that names a CUDA toolkit's folder, and what it holds."""
    for variable in ("CUDA_PATH", "CUDA_HOME"):  # the second counts where the first is not set
        if path := os.environ.get(variable):
            return variable, path
    return None


def toolkit_release(path: str) -> Release | None:
    """The release of the CUDA toolkit in that folder, by its cuda.h; None where there is none."""
    try:
        header = Path(path, "include", "cuda.h").read_text(errors="replace")
    except OSError:
        return None
    for line in header.splitlines():
        words = line.split()
        if words[:2] == ["#define", "CUDA_VERSION"] and words[2:] and words[2].isdecimal():
            return int(words[2]) // 1000, int(words[2]) % 1000 // 10
    return None
