"""What a checked library's symbols and debugging information say, by nm and addr2line; both come
with every linker."""

import ctypes
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .. import causes
from ..errors import MissingError
from .build import HEADER, output_of
from .c_structures import CSharedArray

TOOLS = ("nm", "addr2line")
TOOL_SECONDS = 60  # in which one reads a library

_GAP = "simulator_gap_"
_OWN = "simulator::"


@dataclass(frozen=True)
class Place:
    """A line of a kernel's source. ``callers`` are the lines that it was inlined at, innermost
    first; the last is the kernel's own."""

    file: str
    line: int
    callers: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}"
        if self.callers:
            text += " (" + ", ".join(f"from {file}:{line}" for file, line in self.callers) + ")"
        return text


def find_tools() -> list[str]:
    """The versions of the tools; MissingError where one does not run."""
    return [_run(tool, "--version").splitlines()[0] for tool in TOOLS]


def shared_arrays(library: Path) -> "ctypes.Array[CSharedArray]":
    """The arrays in shared memory: the library's thread-local variables."""
    found = []
    for line in _run("nm", "-C", "-S", "--format=sysv", str(library)).splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) < 5 or fields[3] != "TLS":
            continue
        name = fields[0].rpartition("::")[2]
        if not name.startswith(_GAP) and not fields[0].startswith(_OWN):
            found.append(CSharedArray(name.encode(), int(fields[1], 16), int(fields[4], 16)))
    return (CSharedArray * len(found))(*found)


_places: dict[tuple[Path, int], Place | None] = {}


def places(library: Path, calls: Iterable[int]) -> dict[int, Place | None]:
    """Where in the kernel's source the calls are that return to these addresses of the library."""
    wanted = set(calls)
    unknown = sorted(pc for pc in wanted if pc and (library, pc) not in _places)
    if unknown:
        # The call is the instruction before the address that it returns to.
        addresses = [f"{pc - 1:#x}" for pc in unknown]
        output = _run("addr2line", "-a", "-i", "-e", str(library), *addresses)
        frames: list[tuple[str, int]] = []
        blocks = []
        for text in output.splitlines():
            if text.startswith("0x"):
                frames = []
                blocks.append(frames)
                continue
            file, _, number = text.partition(" (")[0].rpartition(":")
            name = file.rpartition("/")[2]
            if number.isdecimal() and name not in (HEADER.name, "<stdin>"):
                frames.append((name, int(number)))
        for pc, frames in zip(unknown, blocks, strict=True):
            _places[library, pc] = Place(*frames[0], tuple(frames[1:])) if frames else None
    return {pc: _places.get((library, pc)) for pc in wanted}


def _run(tool: str, *arguments: str) -> str:
    try:
        return output_of(tool, *arguments, seconds=TOOL_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingError(causes.BINUTILS_MISSING.of(tool=tool, detail=error)) from error
