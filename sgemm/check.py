"""Checks that versions of the kernel are right, over shapes and layouts that break kernels.

Each row multiplies twice: uniform random operands, whose product must lie within the error bound
of ``residual``, and small integers, whose product is exact in FP32 and must be equal; at a large K
the bound alone would not see one dropped term. Every matrix is cut out of a buffer full of NaN: so
reading outside it shows, and a result that was not written, and one written outside its place.
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import inf, nan
from typing import Any, Literal

import numpy as np

from . import residual, simulator
from .causes import errors_explained
from .errors import ArgumentError, GpuUnusableError, KernelError
from .kernel_files import kernel_path
from .ladder import Layout, Version
from .multiply import matmul
from .simulated import Simulated
from .simulator.build import build

ARTICLE_LIMIT = 1e-4  # on the largest error over the largest element
NAN_AROUND_OPERANDS = 0x7FC00000  # the bits of what surrounds A and B, and another NaN around C:
NAN_AROUND_RESULT = (
    0x7FC05EED  # there, one that was computed from the first is no longer the second
)
LARGEST_INTEGER = 3  # of the operands
MAX_DEPTH = 2**24 // LARGEST_INTEGER**2  # K up to which their products are exact in FP32

FIGURES = {
    "error/bound": "largest error as a fraction of what FP32 rounding allows that element",
    "error/max": f"max|C - C_ref| / max|C_ref|; the article accepts {ARTICLE_LIMIT:g}",
    "integers": "whether the product of small integers is exact, which it must be",
}

Values = Callable[[tuple[int, int]], np.ndarray]


@dataclass(frozen=True)
class Case:
    """A product to check. Every matrix starts ``offset`` floats past a 16-byte boundary and its
    rows (columns, of a column-major B) lie ``gap`` floats further apart than they are long."""

    m: int
    n: int
    k: int
    name: str = ""
    offset: int = 0
    gap: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    b_layout: Layout = "row"


CASES = (
    Case(1, 1, 1),
    Case(33, 33, 33),
    Case(35, 79, 19),
    Case(64, 64, 64),
    Case(64, 96, 30, "K % 4 = 2"),
    Case(100, 7, 129),
    Case(128, 128, 128),
    Case(129, 130, 131),
    Case(72, 64, 80, "misaligned", offset=1),
    Case(50, 71, 39, "gap of 5", gap=5),
    Case(65, 68, 66, "alpha, beta", alpha=1.5, beta=-0.5),
    Case(68, 92, 76, "B by columns", b_layout="column"),
    Case(36, 41, 29, "alpha", alpha=-2.0),
    Case(36, 41, 29, "beta", beta=1.0),
    Case(34, 37, 261, "aligned copies", offset=1, gap=2),  # K is worth them
)


@dataclass(frozen=True)
class Row:
    """One version on one case.

    ``error_over_bound`` is the largest error as a fraction of its element's bound,
    ``relative_error`` is max|C - C_ref| / max|C_ref|; both are inf where the result is not finite
    and should be. ``exact`` says whether the product of integers was.
    """

    version: str
    where: Literal["gpu", "simulator"]
    m: int
    n: int
    k: int
    case: str
    error_over_bound: float
    relative_error: float
    within_article_limit: bool
    exact: bool
    verdict: Literal["right", "wrong"]
    detail: str


def parse_shape(text: str) -> Case:
    """The case of a shape such as ``128x64x30``: M, N and K."""
    match = re.fullmatch(r"([1-9]\d{0,9})x([1-9]\d{0,9})x([1-9]\d{0,9})", text)
    if match is None:
        raise ArgumentError(f"--shape: {text!r}; expected MxNxK in positive numbers, as 128x64x30")
    m, n, k = map(int, match.groups())
    if k > MAX_DEPTH:
        raise ArgumentError(f"--shape: {text!r}; K can be checked up to {MAX_DEPTH}")
    return Case(m, n, k)


class Checker:
    """Checks versions on the GPU where CuPy finds one, else in the simulator.

    ``where`` says which. ``usable`` turns False when a kernel has left the GPU unable to run any
    other, as an illegal access does. ``sanitize`` takes the simulator, and has it check every
    access to memory.
    """

    def __init__(self, seed: int, sanitize: bool = False) -> None:
        self.usable = True
        self._seed = seed
        self._sanitize = sanitize
        self._findings: list[simulator.Finding] = []
        self._xp = np
        cupy = None if sanitize else usable_cupy()
        if cupy is not None:
            self._xp = cupy
        self.where: Literal["gpu", "simulator"] = "gpu" if cupy else "simulator"

    def compile(self, version: Version) -> None:
        """Compile both paths of the version for the simulator, where that takes seconds; a GPU's
        are compiled when they are launched. Safe in several threads at once."""
        if self.where == "simulator":
            for vector in {False, version.float4}:
                build(kernel_path(version.source), "sgemm", version.defines(vector), self._sanitize)

    def check(self, version: Version, case: Case) -> Row:
        """Check one version on one case; SimulatorLimitError where that would take too long."""
        if self.where == "simulator":
            Simulated().check_work(case.m, case.n, case.k)
        random = np.random.default_rng(self._seed)
        worst = relative = inf
        exact = False
        try:
            with errors_explained("after the kernel"):
                uniform = self._multiply(version, case, lambda shape: random.uniform(-1, 1, shape))
                whole = self._multiply(
                    version,
                    case,
                    lambda shape: random.integers(-LARGEST_INTEGER, LARGEST_INTEGER + 1, shape),
                )
        except GpuUnusableError as error:
            self.usable = False
            fault = f"{error}; the check ends here"
        except KernelError as error:
            fault = "\n".join(map(str, self._findings)) or str(error)
        else:
            worst, relative = uniform.worst, uniform.relative
            exact = whole.relative == 0
            if not uniform.ok:
                fault = uniform.summary
            else:
                fault = "" if exact else f"product of integers is not exact; {whole.summary}"
        return Row(
            version=version.name,
            where=self.where,
            m=case.m,
            n=case.n,
            k=case.k,
            case=case.name,
            error_over_bound=worst,
            relative_error=relative,
            within_article_limit=relative <= ARTICLE_LIMIT,
            exact=exact,
            verdict="wrong" if fault else "right",
            detail=fault,
        )

    def _multiply(self, version: Version, case: Case, values: Values) -> residual.Residual:
        xp = self._xp
        shapes = (case.m, case.k), (case.k, case.n), (case.m, case.n)
        a, b, c0 = (xp.asarray(values(shape).astype(np.float32)) for shape in shapes)
        guard = max(version.tile)
        poisoned_a = _PoisonedBuffer(case, guard, NAN_AROUND_OPERANDS, a)
        poisoned_b = _PoisonedBuffer(case, guard, NAN_AROUND_OPERANDS, b, case.b_layout)
        unwritten = xp.full_like(c0, nan)
        out = _PoisonedBuffer(case, guard, NAN_AROUND_RESULT, c0 if case.beta else unwritten)
        self._findings = []
        schedule: AbstractContextManager[None] = nullcontext()
        if xp is np:
            schedule = simulator.order(self._seed)
        checks: AbstractContextManager[list[simulator.Finding]] = nullcontext([])
        if self._sanitize:
            checks = simulator.checked()
        with schedule, checks as self._findings:
            matmul(
                poisoned_a.matrix,
                poisoned_b.matrix,
                out=out.matrix,
                alpha=case.alpha,
                beta=case.beta,
                version=version,
            )
        found = residual.check(out.matrix.copy(), a, b, alpha=case.alpha, beta=case.beta, c0=c0)
        if not out.surroundings_are_intact():
            raise KernelError("writes outside C")
        for name, buffer, values in (("A", poisoned_a, a), ("B", poisoned_b, b)):
            unchanged = bool((buffer.matrix == values).all())
            if not (unchanged and buffer.surroundings_are_intact()):
                raise KernelError(f"writes to {name} or beside it")
        return found


class _PoisonedBuffer:
    """A copy of a matrix, laid out as the case says, in a buffer of the NaN with bits ``poison``.

    ``guard`` rows and as many floats lie before and after it: with the extent of a tile, a kernel
    that forgets where the matrix ends still stays inside the buffer.
    """

    def __init__(
        self, case: Case, guard: int, poison: int, values: Any, layout: Layout = "row"
    ) -> None:
        rows, cols = values.shape if layout == "row" else values.shape[::-1]
        pitch = cols + case.gap
        before = -(-guard * (pitch + 1) // 4) * 4  # keeps the 16-byte boundary
        start, stop = before + case.offset, before + case.offset + rows * pitch
        self._poison = poison
        self._bits = type(values)(stop + before, np.int32)
        self._bits[...] = poison
        lines = self._bits[start:stop].reshape(rows, pitch)[:, :cols]
        self._inside = lines if layout == "row" else lines.T
        self.matrix: Any = self._inside.view(np.float32)
        self.matrix[...] = values

    def surroundings_are_intact(self) -> bool:
        """Whether nothing but the matrix was written; afterwards the matrix is NaN."""
        self._inside[...] = self._poison
        return bool((self._bits == self._poison).all())


def usable_cupy() -> Any:
    """CuPy where it finds a GPU, else None."""
    try:
        import cupy

        return cupy if cupy.cuda.runtime.getDeviceCount() else None
    except Exception:  # not installed, or no driver, or one too old: doctor tells which
        return None
