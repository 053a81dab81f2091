"""Compiles a kernel for the simulator with the system's C++ compiler."""

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache as cached
from pathlib import Path

from .. import cache
from ..errors import CompileError, MissingError
from ..kernel_files import sources

HEADER = Path(__file__).parent / "simulator.h"
COMPILERS = ("g++", "c++", "clang++")

FLAGS = (
    "-std=c++17",
    "-O3",
    "-funroll-loops",  # lets the CPU begin the next thread's sum before this one's is complete
    "-ffp-contract=off",  # only the kernel's own fmaf fuses
    "-fno-strict-aliasing",  # kernels read floats as float4
    "-fmacro-prefix-map=./=",  # Clang's way of naming an included file
    "-fno-exceptions",
    "-fno-rtti",
    "-Wframe-larger-than=32768",  # an error: simulator.h
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-Wl,-z,defs",
    "-DSGEMM_SIMULATOR",
)
# Instructions worth having where this CPU has them: without FMA, fmaf is a slow library call.
CPU_FLAGS = {"fma": "-mfma", "avx2": "-mavx2"}


def find_compiler() -> str:
    """Path and version of the C++ compiler: ``$CXX``, else the first of g++, c++ and clang++.

    Raises MissingError where there is none.
    """
    command, version = _compiler()
    return f"{' '.join(command)}: {version}"


def build(source: Path, entry: str, defines: Mapping[str, int]) -> Path:
    """Compile the kernel ``entry`` of the file ``source`` into a library, which is kept on disk.

    Like NVRTC's, the compilation sees the source, the headers beside it and the ladder's, and
    nothing else. Raises MissingError without a compiler and CompileError with its messages.
    """
    command, version = _compiler()
    flags = [*FLAGS, *_cpu_flags(), *(f"-D{name}={value}" for name, value in defines.items())]
    files = {**sources(str(source.absolute())), HEADER.name: HEADER.read_text(encoding="utf-8")}
    # The kernel may include nothing, so the simulator's header always comes first.
    text = f'#include "{HEADER.name}"\n#include "{source.name}"\nSIMULATE({entry})\n'

    def compile(library: Path) -> None:
        for name, content in files.items():
            (library.parent / name).write_text(content, encoding="utf-8")
        result = subprocess.run(
            [*command, *flags, "-x", "c++", "-", "-o", library.name],
            input=text,
            cwd=library.parent,
            encoding="utf-8",
            errors="replace",
            capture_output=True,
        )
        if result.returncode:
            raise CompileError(f"{source} does not compile:\n{result.stderr}{result.stdout}")
        if not library.exists():
            raise CompileError(f"{source}: {command[0]} reports success, but wrote no library")

    key = ["simulator", *command, version, platform.machine(), *flags, text]
    key += [part for file in files.items() for part in file]
    return cache.fetch(".so", key, compile)


def _compiler() -> tuple[tuple[str, ...], str]:
    """The compiler's command, path first, and its version."""
    return _examine(os.environ.get("CXX", ""), os.environ.get("PATH"))


@cached
def _examine(chosen: str, search_path: str | None) -> tuple[tuple[str, ...], str]:
    for name, *options in _candidates(chosen):
        if path := shutil.which(name, path=search_path):
            command = (path, *options)
            answer = subprocess.run(
                [*command, "--version"], encoding="utf-8", errors="replace", capture_output=True
            )
            if answer.returncode == 0 and answer.stdout:
                return command, answer.stdout.splitlines()[0]
    if chosen.strip():
        raise _not_a_compiler(chosen)
    raise MissingError(
        "the simulator needs a C++ compiler, and there is none; install one, such as with "
        "`apt install g++` or `dnf install gcc-c++`, or set CXX to its path"
    )


def _candidates(chosen: str) -> list[list[str]]:
    """The commands to try, each as its words."""
    if not chosen.strip():
        return [[name] for name in COMPILERS]
    try:
        return [shlex.split(chosen)]
    except ValueError as error:  # a quotation that does not end
        raise _not_a_compiler(chosen) from error


def _not_a_compiler(chosen: str) -> MissingError:
    return MissingError(f"CXX={chosen} is no C++ compiler that runs here; correct or unset it")


@cached
def _cpu_flags() -> tuple[str, ...]:
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    features = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    return tuple(flag for feature, flag in CPU_FLAGS.items() if feature in features)
