"""What a counted launch has asked of memory."""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path

from . import c_structures as c
from .symbols import Place, places

WARP = 32
SECTOR_BYTES = 32


@dataclass
class Access:
    """Requests of warps to one kind of memory.

    ``floats`` is how many 4-byte words the lanes asked for together. ``units`` are sectors of 32
    bytes in global memory, wavefronts in shared memory; ``ideal`` is how few they would be if the
    different words of each request lay side by side.
    """

    requests: int = 0
    floats: int = 0
    units: int = 0
    ideal: int = 0

    @property
    def units_per_request(self) -> float | None:
        return self.units / self.requests if self.requests else None

    @property
    def ideal_per_request(self) -> float | None:
        return self.ideal / self.requests if self.requests else None

    def __add__(self, other: "Access") -> "Access":
        return Access(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass
class Line:
    """What one line of a source asked for; ``copies`` are asynchronous ones, by threads, and so
    are ``barriers`` and ``fmas``."""

    global_loads: Access = field(default_factory=Access)
    global_stores: Access = field(default_factory=Access)
    shared_loads: Access = field(default_factory=Access)
    shared_stores: Access = field(default_factory=Access)
    copies: int = 0
    barriers: int = 0
    fmas: int = 0

    def __add__(self, other: "Line") -> "Line":
        return Line(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Counts:
    """The counts of one launch by place: of the function ``entry`` of the file ``kernel``."""

    kernel: str
    entry: str
    lines: dict[Place | None, Line]


def total(lines: Iterable[Line]) -> Line:
    """The sum of lines."""
    return sum(lines, Line())


def read_counts(library: ctypes.CDLL, path: Path, kernel: str, entry: str) -> Counts:
    """The counts of the library's last launch."""
    found = c.items(library.simulator_counts)
    where = places(path, (count.pc for count in found))
    lines: dict[Place | None, Line] = {}
    for count in found:
        loads, stores, shared_loads, shared_stores = (
            Access(*figures)
            for figures in zip(count.requests, count.floats, count.units, count.ideal, strict=True)
        )
        line = Line(
            loads, stores, shared_loads, shared_stores, count.copies, count.barriers, count.fmas
        )
        place = where[count.pc]
        lines[place] = lines.get(place, Line()) + line
    return Counts(kernel, entry, lines)
