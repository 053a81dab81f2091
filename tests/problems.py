"""Random products, biased to what breaks kernels, and how to compute one."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from matrices import PLAIN, GuardedMatrix, Layout
from places import Place

import sgemm
from sgemm import Version, residual
from sgemm.multiply import ALIGNED_COPY_MIN_K

LARGEST_RANDOM = 70
LARGEST_EDGE = 260


@dataclass(frozen=True)
class Problem:
    """``alpha * A @ B + beta * C0``, written to ``out`` or, where that is None, to a new array.

    ``seed`` gives the values, of the kind ``data``, and the order of the simulator's threads.
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


ORDINARY_DATA = {
    "normal": _normal,
    "uniform": _uniform,
    "widely scaled": _widely_scaled,
    "tiny": _tiny,
    "cancelling": _cancelling,
}
DATA = {**ORDINARY_DATA, "small integers": _small_integers, "extreme": _extreme}


def multiply(problem: Problem, version: Version, place: Place) -> Product:
    """Compute the product and check what holds for every one of them, right or wrong: inputs and
    the surroundings of all matrices are not written, and the result is the array it should be."""
    m, n, k = problem.m, problem.n, problem.k
    rng = np.random.default_rng(problem.seed)
    fill = DATA[problem.data]
    a, b, c0 = (fill(rng, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    guarded = {
        "a": GuardedMatrix(place.xp, (m, k), problem.a, a),
        "b": GuardedMatrix(place.xp, (k, n), problem.b, b),
    }
    out = None
    if problem.out is not None:
        poisoned = problem.beta == 0  # then it must be written without being read
        guarded["out"] = GuardedMatrix(place.xp, (m, n), problem.out, None if poisoned else c0)
        out = guarded["out"].view

    with place.order(problem.seed):
        result = sgemm.matmul(
            guarded["a"].view,
            guarded["b"].view,
            out=out,
            alpha=problem.alpha,
            beta=problem.beta,
            version=version,
        )

    if out is not None:
        assert result is out
    else:
        assert isinstance(result, place.xp.ndarray)
        assert result.shape == (m, n)
        assert result.dtype == np.float32
        assert result.flags.c_contiguous
    for name, matrix in guarded.items():
        assert matrix.guards_are_intact(), f"written outside {name}"
    for name, values in (("a", a), ("b", b)):
        unchanged = place.to_host(guarded[name].view)
        assert np.array_equal(unchanged, values, equal_nan=True), f"{name} was written"
    c = place.to_host(result).copy()
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


def layouts() -> st.SearchStrategy[Layout]:
    return st.builds(
        Layout,
        transposed=st.booleans(),
        offset=st.integers(0, 3),
        padding=st.integers(0, 5),
        row_step=st.sampled_from([1, 1, 1, -1, 2]),
        col_step=st.sampled_from([1, 1, 1, -1, 3]),
    )


def aligned_layouts(rows: int, cols: int) -> st.SearchStrategy[Layout]:
    """Layouts that float4 accesses allow: 16-byte boundaries everywhere."""

    def layout(transposed: bool, float4s: int) -> Layout:
        width = rows if transposed else cols
        return Layout(transposed, padding=-width % 4 + 4 * float4s)

    return st.builds(layout, st.booleans(), st.integers(0, 2))


AROUND_COPIES = st.integers(ALIGNED_COPY_MIN_K - 2, ALIGNED_COPY_MIN_K + 5)
ORDINARY = st.sampled_from(list(ORDINARY_DATA))
SCALES = st.sampled_from([0.0, 1.0, -1.0]) | st.floats(-4, 4, width=32)


@st.composite
def problems(
    draw: st.DrawFn,
    version: Version,
    data: st.SearchStrategy[str] = ORDINARY,
    scales: st.SearchStrategy[float] = SCALES,
) -> Problem:
    """Products for a version: half of them all aligned, so that float4 paths run as often as the
    others do."""
    tile_m, tile_n, tile_k = version.tile
    m, n = draw(extents(tile_m)), draw(extents(tile_n))
    k = draw(extents(tile_k) | AROUND_COPIES)
    aligned = draw(st.booleans())
    a, b, out = (
        draw(aligned_layouts(*shape) if aligned else layouts())
        for shape in ((m, k), (k, n), (m, n))
    )
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
        draw(data),
        draw(st.integers(0, 2**32 - 1)),
    )
