"""Random products, biased to what breaks kernels, and how to compute one."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st
from matrices import PLAIN, GuardedMatrix, Layout
from places import Place

import sgemm
from sgemm import Version, ladder, residual
from sgemm import multiply as multiply_module
from sgemm.recipe import ALIGNED_COPY_MIN_K, recipe_for

LARGEST_RANDOM = 70
LARGEST_EDGE = 260


@dataclass(frozen=True)
class Problem:
    """``alpha * A @ B + beta * C0``, written to ``out`` or, where that is None, to a new array.

    ``seed`` gives the values, of the kind ``data``, and the order of the simulator's threads.
    alpha and beta are passed as the kind ``scalars``; ``own_stream``: not on the default stream.
    ``sharing`` is when the blocks of a stream-K version share tiles: small problems are of another
    opinion than large ones about what pays.
    """

    m: int
    n: int
    k: int
    a: Layout = PLAIN
    b: Layout = PLAIN
    out: Layout | None = None
    alpha: float = 1.0
    beta: float = 0.0
    data: str = "normal"
    seed: int = 0
    scalars: str = "Python"
    own_stream: bool = False
    sharing: str = "where it pays"


@dataclass(frozen=True)
class Product:
    """What went into a product and what came out, on the host."""

    a: np.ndarray
    b: np.ndarray
    c0: np.ndarray | None
    c: np.ndarray
    alpha: float
    beta: float

    def residual(self) -> residual.Residual:
        return residual.check(self.c, self.a, self.b, alpha=self.alpha, beta=self.beta, c0=self.c0)

    def in_integers(self) -> np.ndarray:
        """What it must be, exactly, where all that went in are small integers."""
        product = self.alpha * (self.a.astype(int) @ self.b.astype(int))
        return product if self.c0 is None else product + self.beta * self.c0


def _normal(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    return rng.standard_normal(shape)


def _uniform(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    return rng.uniform(0, 1, shape)


def _widely_scaled(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    return rng.standard_normal(shape) * np.exp(4 * rng.standard_normal(shape))


def _tiny(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    """Products of two are subnormal, or round to 0."""
    return rng.standard_normal(shape) * 2.0**-72


def _cancelling(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    """Terms of 1e8 whose sums are near 0."""
    signs = np.where(np.add.outer(np.arange(shape[0]), np.arange(shape[1])) % 2, -1e4, 1e4)
    return signs + rng.standard_normal(shape)


def _small_integers(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    return rng.integers(-3, 3, shape, endpoint=True)


def _extreme(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    """Ordinary values with a few that overflow, are not finite, or are 0."""
    special = [np.inf, -np.inf, np.nan, 3e38, -3e38, 0.0, -0.0, 1e-45]
    values = rng.standard_normal(shape)
    return np.where(rng.random(shape) < 0.05, rng.choice(special, shape), values)


DATA = {
    "small integers": _small_integers,
    "extreme": _extreme,
    "normal": _normal,
    "uniform": _uniform,
    "widely scaled": _widely_scaled,
    "tiny": _tiny,
    "cancelling": _cancelling,
}


SCALARS = {
    "Python": lambda xp, value: value,
    "NumPy float32": lambda xp, value: np.float32(value),
    "NumPy float64": lambda xp, value: np.float64(value),
    "NumPy, no dimensions": lambda xp, value: np.array(value),
    "the place's own, no dimensions": lambda xp, value: xp.asarray(np.float32(value)),
}


SHARING = {
    "where it pays": {},
    "always": {"SHARING_COST": 0, "COST_OF_A_PART": 0},
    "never": {"SHARING_COST": inf},
}


@contextmanager
def sharing(when: str) -> Iterator[None]:
    """Share tiles at such costs within the context."""
    with mock.patch.dict(vars(ladder), SHARING[when]):
        _forget_recipes()
        yield
    _forget_recipes()


def _forget_recipes() -> None:
    for found_before in (multiply_module._decide, recipe_for):
        found_before.cache_clear()


def multiply(problem: Problem, version: Version, place: Place) -> Product:
    """Compute the product and check what holds for every one of them, right or wrong: inputs and
    the surroundings of all matrices are not written, and the result is the array it should be."""
    with place.own_stream() if problem.own_stream else nullcontext(), sharing(problem.sharing):
        return _multiply(problem, version, place)


def _multiply(problem: Problem, version: Version, place: Place) -> Product:
    m, n, k = problem.m, problem.n, problem.k
    rng = np.random.default_rng(problem.seed)
    fill = DATA[problem.data]
    a, b, c0 = (fill(rng, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    inputs = {
        "a": GuardedMatrix(place, (m, k), problem.a, a),
        "b": GuardedMatrix(place, (k, n), problem.b, b),
    }
    a, b = (matrix.values_before() for matrix in inputs.values())  # rows may be broadcast
    out = None
    if problem.out is not None:
        poisoned = problem.beta == 0  # then it must be written without being read
        out = GuardedMatrix(place, (m, n), problem.out, None if poisoned else c0)

    scalar = SCALARS[problem.scalars]
    with place.order(problem.seed):
        result = sgemm.matmul(
            inputs["a"].view,
            inputs["b"].view,
            out=None if out is None else out.view,
            alpha=scalar(place.xp, problem.alpha),
            beta=scalar(place.xp, problem.beta),
            version=version,
        )

    for name, matrix in inputs.items():
        assert matrix.is_unchanged(), f"{name} or what is around it was written"
    if out is None:
        assert isinstance(result, place.xp.ndarray)
        assert result.shape == (m, n)
        assert result.dtype == np.float32
        assert result.flags.c_contiguous
        c = place.to_host(result)
    else:
        assert result is out.view
        assert out.guards_are_intact(), "written outside out"
        c = out.values_now()
    return Product(a, b, c0 if problem.beta else None, c, problem.alpha, problem.beta)


def extents(tile: int) -> st.SearchStrategy[int]:
    """Sizes of a dimension: anything small, and around the edges of tiles."""
    edges = {
        tiles * tile + beside
        for tiles in range(1, 4)
        for beside in (-1, 0, 1)
        if tiles * tile + beside <= LARGEST_EDGE
    }
    return st.one_of(st.integers(0, LARGEST_RANDOM), st.sampled_from(sorted(edges)))


def layouts(inputs: bool = True) -> st.SearchStrategy[Layout]:
    """Any layout; without those that are for ``inputs`` only, it may be out's."""
    repeated = st.sampled_from([False] * 7 + [True]) if inputs else st.just(False)
    return st.builds(
        Layout,
        transposed=st.booleans(),
        offset=st.integers(0, 3),
        padding=st.integers(0, 5),
        row_step=st.sampled_from([1, 1, 1, -1, 2]),
        col_step=st.sampled_from([1, 1, 1, -1, 3]),
        same_rows=repeated,
        same_cols=repeated,
    )


def aligned_layouts(rows: int, cols: int) -> st.SearchStrategy[Layout]:
    """Layouts that float4 accesses allow: 16-byte boundaries everywhere."""

    def layout(transposed: bool, float4s: int) -> Layout:
        width = rows if transposed else cols
        return Layout(transposed, padding=-width % 4 + 4 * float4s)

    return st.builds(layout, st.booleans(), st.integers(0, 2))


AROUND_COPIES = st.integers(ALIGNED_COPY_MIN_K - 2, ALIGNED_COPY_MIN_K + 5)
SCALES = (
    st.sampled_from([0.0, 1.0, -1.0])
    | st.floats(-4, 4, width=32)
    | st.sampled_from([0.1, -1 / 3, 1e30, 2.0**-140, 1e-60, -0.0])  # rounded; to 0 as well
)
ANY_DATA = st.sampled_from(list(DATA))
SMALL_INTEGERS = st.integers(-2, 2).map(float)


@st.composite
def problems(
    draw: st.DrawFn,
    version: Version,
    data: st.SearchStrategy[str] = ANY_DATA,
    scales: st.SearchStrategy[float] | None = None,
) -> Problem:
    """Products for a version: half of them all aligned, so that float4 paths run as often as the
    others do; small integers have scales that are some too."""
    tile_m, tile_n, tile_k = version.tile
    m, n = draw(extents(tile_m)), draw(extents(tile_n))
    k = draw(extents(tile_k) | AROUND_COPIES)
    aligned = draw(st.booleans())
    a, b, out = (
        draw(aligned_layouts(*shape) if aligned else layouts(inputs))
        for shape, inputs in (((m, k), True), ((k, n), True), ((m, n), False))
    )
    kind = draw(data)
    if scales is None:
        scales = SMALL_INTEGERS if kind == "small integers" else SCALES
    beta = draw(scales)
    out_is_given = beta != 0 or draw(st.booleans())
    return Problem(
        m,
        n,
        k,
        a,
        b,
        out if out_is_given else None,
        draw(scales),
        beta,
        kind,
        draw(st.integers(0, 2**32 - 1)),
        draw(st.sampled_from(list(SCALARS))),
        draw(st.booleans()),
        draw(st.sampled_from(["where it pays", "always"])) if version.stream_k else "never",
    )


@st.composite
def windows(draw: st.DrawFn, size: int, rows: int, cols: int) -> tuple[int, int, int]:
    """Where in a buffer of that many floats a matrix may lie: offset, row stride, column stride."""
    row_stride, col_stride = draw(st.integers(-9, 9)), draw(st.integers(-9, 9))
    steps = (rows - 1) * row_stride, (cols - 1) * col_stride
    lowest = sum(min(0, step) for step in steps)
    highest = sum(max(0, step) for step in steps)
    return draw(st.integers(-lowest, size - 1 - highest)), row_stride, col_stride
