"""Compiles a kernel for the simulator with the system's C++ compiler."""

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache as cached
from pathlib import Path

from .. import cache, causes
from ..errors import CompileError, MissingError
from ..kernel_files import read, sources

HEADER = Path(__file__).parent / "simulator.h"
# What every kernel is linked with, compiled as one file.
RUNTIME = ("runtime.h", "runtime.cpp", "operands.cpp", "checks.cpp", "counts.cpp", "hooks.cpp")
COMPILERS = ("g++", "c++", "clang++")
COMPILER_SECONDS = 20  # in which one says what it is

FLAGS = (
    "-std=c++17",
    "-ffp-contract=off",  # only the kernel's own fmaf fuses
    "-fno-strict-aliasing",  # kernels read floats as float4
    "-fmacro-prefix-map=./=",  # Clang's way of naming an included file
    "-fno-exceptions",
    "-fno-rtti",
    "-Wframe-larger-than=32768",  # an error: simulator.h
    "-fvisibility=hidden",
    "-fPIC",
    "-DSGEMM_SIMULATOR",
)
FAST = (
    "-O3",
    "-funroll-loops",  # lets the CPU begin the next thread's sum before this one's is complete
)
# Calls a hook at every access to memory that the source makes, of the width that it has there.
CHECKED = (
    "-O2",
    "-g",  # the places of the hooks' calls
    "-fsanitize=thread",  # the hooks are hooks.cpp's
    "-fno-tree-vectorize",
    "-fno-tree-slp-vectorize",
    "-fno-optimize-sibling-calls",  # a call is followed by its return address
    "-fno-threadsafe-statics",
    "-DSIMULATOR_CHECKED",
)
# Instructions worth having where this CPU has them: without FMA, fmaf is a slow library call.
CPU_FLAGS = {"fma": "-mfma", "avx2": "-mavx2"}


def find_compiler() -> str:
    """Path and version of the C++ compiler: ``$CXX``, else the first of g++, c++ and clang++.

    Raises MissingError where there is none.
    """
    command, version = _compiler()
    return f"{' '.join(command)}: {version}"


def build(source: Path, entry: str, defines: Mapping[str, int], checked: bool = False) -> Path:
    """Compile the kernel ``entry`` of the file ``source`` into a library, which is kept on disk.

    Like NVRTC's, the compilation sees the source, the headers beside it and the ladder's, and
    nothing else. A ``checked`` library reports its accesses to memory. Raises MissingError without
    a compiler and CompileError with its messages.
    """
    files = {**sources(str(source.absolute())), HEADER.name: read(HEADER)}
    # The kernel may include nothing, so the simulator's header always comes first.
    text = f'#include "{HEADER.name}"\n#include "{source.name}"\nSIMULATE({entry})\n'
    flags = [*(CHECKED if checked else FAST), *(f"-D{name}={v}" for name, v in defines.items())]
    runtime = _build_runtime()
    link = ["-shared", "-Wl,-z,defs", "-x", "none", str(runtime), "-lm"]
    if checked:  # without the sanitizer's library
        link += ["-nodefaultlibs", "-lgcc", "-lc"]
    return _compile(str(source), cache.LIBRARY, files, text, flags, link)


def _build_runtime() -> Path:
    """Compile what every kernel is linked with."""
    files = {name: read(HEADER.parent / name) for name in (HEADER.name, *RUNTIME)}
    text = "".join(f'#include "{name}"\n' for name in RUNTIME)
    return _compile("the simulator", ".o", files, text, ["-O3", "-g", "-c"], [])


def _compile(
    what: str, suffix: str, files: Mapping[str, str], text: str, flags: list[str], link: list[str]
) -> Path:
    """Compile ``text``, which includes ``files``."""
    command, version = _compiler()
    flags = [*FLAGS, *_cpu_flags(), *flags]

    def compile(product: Path) -> None:
        for name, content in files.items():
            (product.parent / name).write_text(content, encoding="utf-8")
        result = subprocess.run(
            [*command, *flags, "-x", "c++", "-", *link, "-o", product.name],
            input=text,
            cwd=product.parent,
            # Temporary files beside the product, and messages that are known.
            env={**os.environ, "TMPDIR": str(product.parent), "LC_ALL": "C"},
            encoding="utf-8",
            errors="replace",
            capture_output=True,
        )
        if result.returncode:
            for full in cache.FULL:
                if os.strerror(full) in result.stderr:
                    raise OSError(full, os.strerror(full))
            raise CompileError(f"{what} does not compile:\n{result.stderr}{result.stdout}")
        if not product.exists():
            raise CompileError(f"{what}: {command[0]} reports success, but wrote no library")

    key = ["simulator", *command, version, platform.machine(), *flags, *link, text]
    key += [part for file in files.items() for part in file]
    return cache.fetch(suffix, key, compile)


def _compiler() -> tuple[tuple[str, ...], str]:
    """The compiler's command, path first, and its version."""
    return _examine(os.environ.get("CXX", ""), os.environ.get("PATH"))


@cached
def _examine(chosen: str, search_path: str | None) -> tuple[tuple[str, ...], str]:
    for name, *options in _candidates(chosen):
        if path := shutil.which(name, path=search_path):
            command = (path, *options)
            with suppress(OSError, subprocess.SubprocessError):
                version = output_of(*command, "--version", seconds=COMPILER_SECONDS)
                nothing = "-fsyntax-only", "-x", "c++", os.devnull
                output_of(*command, *nothing, seconds=COMPILER_SECONDS)
                if version:
                    return command, version.splitlines()[0]
    if chosen.strip():
        raise _not_a_compiler(chosen)
    raise MissingError(causes.CPP_COMPILER_MISSING)


def output_of(*command: str, seconds: float) -> str:
    """What a command prints; OSError where it cannot be run, SubprocessError where it fails or does
    not end in so many seconds."""
    return subprocess.run(
        command,
        check=True,
        timeout=seconds,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    ).stdout


def _candidates(chosen: str) -> list[list[str]]:
    """The commands to try, each as its words."""
    if not chosen.strip():
        return [[name] for name in COMPILERS]
    try:
        return [shlex.split(chosen)]
    except ValueError as error:  # a quotation that does not end
        raise _not_a_compiler(chosen) from error


def _not_a_compiler(chosen: str) -> MissingError:
    return MissingError(causes.CPP_COMPILER_WRONG.of(command=chosen))


@cached
def _cpu_flags() -> tuple[str, ...]:
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    try:
        features = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:  # a sandbox without /proc
        return ()
    return tuple(flag for feature, flag in CPU_FLAGS.items() if feature in features)
