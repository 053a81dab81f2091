"""Compiles kernels for a GPU with NVRTC; needs no GPU, no CUDA toolkit and no CuPy."""

import importlib.metadata
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache as cached
from pathlib import Path
from typing import Any

from . import cache, causes, ptxas
from .errors import ArgumentError, ArgumentTypeError, CompileError, MissingError, first_line
from .kernel_files import sources
from .ladder import Version
from .releases import capability_of, dotted
from .versions import oldest, resolve


@dataclass(frozen=True)
class Compiled:
    """A kernel for one GPU architecture.

    ``registers`` are per thread, ``spill_bytes`` per thread (stores and loads), ``shared_bytes``
    per block; ``log`` is the compiler's own report, ``nvrtc`` its release, such as ``"13.5"``.
    """

    cubin: bytes
    registers: int
    spill_bytes: int
    shared_bytes: int
    log: str
    nvrtc: str


def compile(
    version: str | Version, arch: str = "sm_90", *, vector: bool = True, debug: bool = False
) -> Compiled:
    """Compile one version of the ladder for ``arch``.

    ``vector`` selects the float4 path to global memory, where the version has one; ``debug`` turns
    the device-side assertions on. Raises ArgumentError for an unknown version and an architecture
    that this NVRTC does not know or the version does not run on, CompileError for source that does
    not compile, and MissingError where there is no NVRTC.
    """
    version = resolve(version)
    _check(arch)
    require_runs_on(version, arch)
    return compile_kernel(version.source, version.defines(vector), arch, debug=debug)


def runs_on(version: Version, arch: str) -> bool:
    """Whether GPUs of an architecture can run a version; of words that are none, the compiler
    decides."""
    capability = capability_of(arch)
    return capability is None or capability >= version.min_compute_capability


def require_runs_on(version: Version, arch: str) -> None:
    """Raises ArgumentError where GPUs of an architecture cannot run a version."""
    if not runs_on(version, arch):
        raise ArgumentError(
            f"arch: {version.name} needs compute capability "
            f"{dotted(version.min_compute_capability)} or later, not {arch!r}"
        )


def compile_kernel(
    source: str, defines: Mapping[str, int], arch: str, *, debug: bool = False
) -> Compiled:
    """Compile the kernel file ``source`` with the macros ``defines``; kept on disk."""
    _check(arch)
    release = nvrtc_version()
    options = [f"-arch={_with_its_own_instructions(arch)}", "-std=c++17", "--ptxas-options=-v"]
    if _release() >= (12, 9):  # which knows the option; older ones cache nothing
        options.append(
            "--no-cache"
        )  # what comes from the driver's cache comes without ptxas' report
    options += [f"-D{name}={value}" for name, value in defines.items()]
    if debug:
        options.append("-DSGEMM_DEBUG=1")
    files = sources(source)

    def build(path: Path) -> None:
        cubin, log = _run_nvrtc(files, options)
        compiled = Compiled(cubin, *ptxas.parse(log), log=log, nvrtc=release)
        path.write_bytes(json.dumps({**asdict(compiled), "cubin": None}).encode() + b"\n" + cubin)

    key = ["nvrtc", release, *options, *(text for file in files.items() for text in file)]
    facts, _, cubin = cache.fetch(".cubin", key, build).read_bytes().partition(b"\n")
    return Compiled(**{**json.loads(facts), "cubin": cubin})


def _with_its_own_instructions(arch: str) -> str:
    """From 9.0 on a GPU has instructions that no later one need have, such as setmaxnreg; the
    compiler emits them for the architecture with an "a" at its end."""
    digits = arch.removeprefix("sm_")
    return f"{arch}a" if digits.isdecimal() and int(digits) >= 90 else arch


def _check(arch: object) -> None:
    """Raise unless this NVRTC compiles for ``arch``."""
    if not isinstance(arch, str):
        raise ArgumentTypeError(
            f"arch: {type(arch).__name__} is not accepted; pass a name, such as 'sm_90'"
        )
    if cause := why_not(arch):
        raise ArgumentError(f"arch: {cause}")


def why_not(arch: str, gpu: str = "") -> causes.Cause | None:
    """Why this NVRTC does not compile for ``arch``; None where it does. ``gpu`` is what the cause
    calls the GPU. MissingError where there is no NVRTC."""
    needed = oldest().min_compute_capability
    return causes.of_architecture(arch, nvrtc_version(), architectures(), needed, gpu)


def nvrtc_version() -> str:
    """The release of the NVRTC that compiles here, such as ``"13.5"``."""
    return "{}.{}".format(*_release())


def architectures() -> list[str]:
    """The GPU architectures that this NVRTC compiles for, such as ``"sm_90"``."""
    (numbers,) = _result(_nvrtc().nvrtcGetSupportedArchs())
    return [f"sm_{number}" for number in numbers]


def _release() -> tuple[Any, ...]:
    return _result(_nvrtc().nvrtcVersion())


@cached
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:  # the library's loader raises kinds of its own
        detail = first_line(error)
        named = causes.named_toolkit()
        if named and causes.toolkit_release(named[1]) is None:
            detail += f"; {'='.join(named)} holds no CUDA toolkit"
        missing = causes.NVRTC_MISSING.of(detail=detail, install=_installation())
        raise MissingError(missing) from error
    return nvrtc


def _installation() -> str:
    """The command that brings NVRTC, of its binding's CUDA major where that is installed."""
    try:
        major = int(importlib.metadata.version("cuda-bindings").split(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return "pip install cuda-bindings nvidia-cuda-nvrtc"
    return f"pip install {causes.nvrtc_package(major)}"


def _result(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """What an NVRTC call returns after its status."""
    status, *values = answer
    if status:
        major, minor = _nvrtc().nvrtcVersion()[1:]
        raise CompileError(
            causes.NVRTC_FAILED.of(
                release=f"{major}.{minor}", status=status.name, package=causes.nvrtc_package(major)
            )
        )
    return tuple(values)


def _run_nvrtc(files: Mapping[str, str], options: list[str]) -> tuple[bytes, str]:
    """Compile the first of ``files``, which includes the others: cubin and compiler log."""
    nvrtc = _nvrtc()
    (name, text), *headers = ((name.encode(), text.encode()) for name, text in files.items())
    (program,) = _result(
        nvrtc.nvrtcCreateProgram(
            text, name, len(headers), [text for _, text in headers], [name for name, _ in headers]
        )
    )
    try:
        encoded = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = _read(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        log_text = log.rstrip(b"\0").decode(errors="replace").strip()
        if status:
            raise CompileError(f"{name.decode()} does not compile:\n{_explained(log_text)}")
        return _read(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN), log_text
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _explained(log: str) -> str:
    """The compiler's log, with the cause of a header that it does not find."""
    missing = re.search(r"(?:cannot|could not) open source file", log)
    return f"{log}\n{causes.HEADER_NOT_FOUND}" if missing else log


def _read(program: Any, get_size: Any, get: Any) -> bytes:
    (size,) = _result(get_size(program))
    buffer = bytearray(size)
    _result(get(program, buffer))
    return bytes(buffer)
