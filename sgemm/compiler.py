"""Compiles kernels for a GPU with NVRTC; needs no GPU, no CUDA toolkit and no CuPy."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache as cached
from pathlib import Path
from typing import Any

from . import cache, ptxas
from .errors import ArgumentError, CompileError, MissingError
from .kernel_files import sources
from .ladder import Version
from .versions import resolve


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
    the device-side assertions on. Raises ArgumentError for an unknown version or an architecture
    that this NVRTC does not know, CompileError for source that does not compile, and MissingError
    where there is no NVRTC.
    """
    version = resolve(version)
    return compile_kernel(version.source, version.defines(vector), arch, debug=debug)


def compile_kernel(
    source: str, defines: Mapping[str, int], arch: str, *, debug: bool = False
) -> Compiled:
    """Compile the kernel file ``source`` with the macros ``defines``; kept on disk."""
    release = nvrtc_version()
    if arch not in (known := architectures()):
        raise ArgumentError(
            f"arch: NVRTC {release} does not compile for {arch!r}; it knows {', '.join(known)}"
        )
    options = [f"-arch={arch}", "-std=c++17", "--ptxas-options=-v"]
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
        cause = (str(error) or type(error).__name__).splitlines()[0]
        raise MissingError(
            f'no NVRTC to compile kernels with ({cause}); pip install "sgemm[static]" brings it'
        ) from error
    return nvrtc


def _result(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """What an NVRTC call returns after its status."""
    status, *values = answer
    if status:
        raise CompileError(f"NVRTC: {status.name}")
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
            raise CompileError(f"{name.decode()} does not compile:\n{log_text}")
        return _read(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN), log_text
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _read(program: Any, get_size: Any, get: Any) -> bytes:
    (size,) = _result(get_size(program))
    buffer = bytearray(size)
    _result(get(program, buffer))
    return bytes(buffer)
