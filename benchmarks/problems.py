"""The products that every version is measured on."""

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Problem:
    """``C = A @ B``, A of m×k and B of k×n floats.

    A starts ``a_offset`` floats past an aligned address. B has the layout that the version reads
    (``"native"``), so that no conversion is timed, or is column-major for every version.
    """

    m: int
    n: int
    k: int
    a_offset: int = 0
    b_layout: Literal["native", "column"] = "native"

    @property
    def name(self) -> str:
        name = f"{self.m}x{self.n}x{self.k}"
        if self.a_offset:
            name += f" A+{self.a_offset}"
        if self.b_layout == "column":
            name += " B column-major"
        return name

    @property
    def flops(self) -> int:
        m, n, k = self._sizes()
        return 2 * m * n * k

    @property
    def allows_float4(self) -> bool:
        """Whether every row of A starts on a 16-byte boundary."""
        return self.a_offset % 4 == 0 and self.k % 4 == 0

    @property
    def operand_bytes(self) -> int:
        """The size of A, B and C together."""
        m, n, k = self._sizes()
        return 4 * (m * k + k * n + m * n)

    def _sizes(self) -> tuple[int, int, int]:
        """As Python's integers: NumPy's would overflow."""
        return int(self.m), int(self.n), int(self.k)


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem(4096, 4096, 4096),  # first: it is what asv's pages show at first
        Problem(2048, 2048, 2048),
        Problem(1024, 1024, 1024),
        Problem(512, 512, 512),
        Problem(4096, 4096, 4095),  # rows of A that no float4 reads
        Problem(8192, 2048, 1024),  # a rectangle
        Problem(4096, 4096, 4096, a_offset=1),
        Problem(4096, 4096, 4096, b_layout="column"),
    )
}
"""Problem by name."""


def parse(text: str) -> Problem:
    """The problem of that name, or of a shape MxNxK; ValueError for anything else."""
    if text in PROBLEMS:
        return PROBLEMS[text]
    shape = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})x([1-9]\d{0,5})", text)
    if shape is None:
        known = ", ".join(f'"{name}"' for name in PROBLEMS)
        raise ValueError(f"--problem: {text!r} is neither a shape MxNxK nor one of {known}")
    m, n, k = map(int, shape.groups())
    return Problem(m, n, k)
