"""What a checked launch has found."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

from . import c_structures as c
from .symbols import Place, places


@dataclass(frozen=True)
class Finding:
    """A mistake of a kernel, where and when it was seen first.

    ``kind`` is one of "out of bounds", "misaligned", "read-only", "uninitialised", "race", "copy
    in flight", "outside the tile", "unwritten", "barrier", "mbarrier", "deadlock", "assertion",
    "trap" and "stack". ``place`` is None where no line is to blame, ``block`` and ``thread`` are
    None where no thread is. ``address`` is that of the access, 0 where there is none;
    ``other_place`` that of the access which it collides with. ``times`` is how often it was seen.
    """

    kernel: str
    kind: str
    place: Place | None
    block: int | None
    thread: int | None
    address: int
    expected: str
    other_place: Place | None
    times: int

    def __str__(self) -> str:
        text = f"{self.place or self.kernel}: "
        if self.block is not None:
            text += f"block {self.block} thread {self.thread}: "
        text += "" if self.expected.startswith(self.kind) else f"{self.kind}: "
        text += self.expected
        if self.other_place:
            text += f" {self.other_place}"
        elif self.expected.endswith(":"):
            text += " a line that the compiler does not tell"
        if self.address:
            text += f" [address {self.address:#x}]"
        return text


def read_findings(library: ctypes.CDLL, path: Path, kernel: str) -> list[Finding]:
    """The findings of the library's last launch."""
    found = c.items(library.simulator_findings)
    where = places(path, (pc for finding in found for pc in (finding.pc, finding.other_pc)))
    return [
        Finding(
            kernel=kernel,
            kind=finding.kind.decode(),
            place=Place(finding.file.decode(errors="replace"), finding.line)
            if finding.file
            else where.get(finding.pc),
            block=finding.block if finding.block >= 0 else None,
            thread=finding.thread if finding.thread >= 0 else None,
            address=finding.address,
            expected=finding.text.decode(errors="replace"),
            other_place=where.get(finding.other_pc),
            times=finding.times,
        )
        for finding in found
    ]
