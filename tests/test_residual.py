"""The numerical check itself: it accepts what FP32 may round to, and nothing else."""

import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgemm import residual

FLOAT32_MAX = np.finfo(np.float32).max
LEAST_SUBNORMAL = np.float32(2.0**-149)


def float32(values):
    return np.array(values, np.float32)


def random_matrices(m=33, n=41, k=57, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape, np.float32) for shape in ((m, k), (k, n), (m, n)))


def naive(a, b, alpha=1.0, beta=0.0, c0=None):
    """The product in FP32, one term after another, rounded after every operation."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        for k in range(a.shape[1]):
            total = total + a[:, k, None] * b[None, k]
        total = np.float32(alpha) * total
        return total if c0 is None else total + np.float32(beta) * c0


def test_a_right_product_is_right():
    a, b, c0 = random_matrices()
    result = residual.check(naive(a, b, 2.5, -3, c0), a, b, alpha=2.5, beta=-3, c0=c0)
    assert result.ok
    assert result.wrong == 0
    assert result.first_wrong is None
    assert 0 < result.worst < 1
    assert 0 < result.relative < 1e-5
    assert result.summary.startswith("right: ")


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda c: np.zeros_like(c), id="zeros"),
        pytest.param(lambda c: np.full_like(c, np.nan), id="nan"),
        pytest.param(lambda c: np.full_like(c, np.inf), id="inf"),
        pytest.param(lambda c: c[::-1], id="rows in the wrong order"),
        pytest.param(lambda c: c * np.float32(1.001), id="slightly off"),
        pytest.param(lambda c: -c, id="wrong sign"),
    ],
)
def test_a_wrong_result_is_wrong(spoil):
    a, b, _ = random_matrices()
    result = residual.check(spoil(naive(a, b)), a, b)
    assert not result.ok
    assert result.wrong > 0.9 * result_size(a, b)
    assert result.worst > 1
    assert result.first_wrong == (0, 0)
    assert result.summary.startswith(f"wrong: {result.wrong} of {result_size(a, b)} elements")


def result_size(a, b):
    return a.shape[0] * b.shape[1]


def test_a_stale_result_is_wrong():
    a, b, c0 = random_matrices()
    other_a, other_b, _ = random_matrices(seed=1)
    assert not residual.check(naive(other_a, other_b), a, b).ok
    assert not residual.check(c0, a, b, beta=1.0, c0=c0).ok


@given(
    row=st.integers(0, 32),
    col=st.integers(0, 40),
    value=st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 2.0**100]),
)
def test_one_wrong_element_is_found(row, col, value):
    a, b, _ = random_matrices()
    c = naive(a, b)
    c[row, col] = value
    result = residual.check(c, a, b)
    assert result.wrong == 1
    assert result.first_wrong == (row, col)
    assert f"({row}, {col}): found {value:.9g}" in result.summary
    assert np.isinf(result.worst) == (not np.isfinite(value))


def test_a_missing_term_is_wrong():
    """Skipping the last k; at small K, that is: at large K the bound cannot see it, and tests on
    integers must."""
    a, b, _ = random_matrices(k=300)
    assert not residual.check(naive(a[:, :-1], b[:-1]), a, b).ok


def test_cancellation_is_allowed_for():
    """The true result is near 0 while the terms are large: no relative tolerance would do."""
    k = 64
    large = np.tile(float32([1e4, -1e4]), k // 2)
    a = np.tile(large, (8, 1)) + float32(np.linspace(0, 1e-3, 8 * k).reshape(8, k))
    b = np.ones((k, 8), np.float32)
    c = naive(a, b)
    assert residual.check(c, a, b).ok
    assert not residual.check(c + 10, a, b).ok


@pytest.mark.parametrize("k", [1, 2, 7, 4096, 65536])
def test_long_sums_are_within_the_bound(k):
    a, b, _ = random_matrices(m=3, n=4, k=k)
    result = residual.check(naive(a, b), a, b)
    assert result.ok, result.summary


@given(st.data())
def test_the_bound_against_exact_arithmetic(data):
    """One element, its bound computed in fractions: just inside is right, just outside is wrong."""
    floats = st.floats(width=32, allow_nan=False, allow_infinity=False).map(np.float32)
    ordinary = floats.filter(lambda x: x == 0 or 1e-18 < abs(x) < 1e18)
    a = float32([data.draw(st.lists(ordinary, min_size=1, max_size=5))])
    b = float32([[data.draw(ordinary)] for _ in a[0]])
    alpha, beta, c0 = (float(data.draw(ordinary)) for _ in range(3))
    terms = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[0], b[:, 0], strict=True)]
    exact = Fraction(alpha) * sum(terms) + Fraction(beta) * Fraction(c0)
    size = abs(Fraction(alpha)) * sum(map(abs, terms)) + abs(Fraction(beta) * Fraction(c0))
    u, n = Fraction(1, 2**24), len(terms) + 2
    bound = n * u / (1 - n * u) * size
    bound += (abs(Fraction(alpha)) * len(terms) + 2) * Fraction(1, 2**150)

    def is_right(value):
        if abs(value) > Fraction(float(FLOAT32_MAX)):
            return None
        c = float32([[float(value)]])
        error = abs(Fraction(float(c[0, 0])) - exact)
        return residual.check(c, a, b, alpha=alpha, beta=beta, c0=float32([[c0]])).ok, error

    for share in (Fraction(0), Fraction(1, 2), Fraction(9, 10), Fraction(2), Fraction(10)):
        for value in (exact - share * bound, exact + share * bound):
            if (answer := is_right(value)) is not None:
                right, error = answer
                if error <= bound * (1 - Fraction(1, 10**6)):
                    assert right
                if error > bound * (1 + Fraction(1, 10**6)):
                    assert not right


@pytest.mark.parametrize("alpha", [1.0, -2.0, 0.5])
@pytest.mark.parametrize("beta", [0.0, 1.0, -3.0])
@pytest.mark.parametrize("depth", [1, 30])
def test_the_bound(alpha, beta, depth):
    """The error of one step of a float, as a fraction of the bound, written out."""
    a, b, c0 = np.ones((1, depth), "f4"), np.full((depth, 1), -1, "f4"), float32([[4]])
    c = float32([[-alpha * depth + beta * 4]])
    beside = np.nextafter(c, np.float32(1000))
    gamma = (depth + 2) * 2.0**-24 / (1 - (depth + 2) * 2.0**-24)
    bound = gamma * (abs(alpha) * depth + abs(beta) * 4)
    result = residual.check(beside, a, b, alpha=alpha, beta=beta, c0=c0)
    assert result.worst == pytest.approx(float(beside[0, 0] - c[0, 0]) / bound, rel=1e-9)

    least = float32([[LEAST_SUBNORMAL]])
    result = residual.check(least, 0 * a, b, alpha=alpha, beta=beta, c0=0 * c0)
    assert result.worst == pytest.approx(2 / (abs(alpha) * depth + 2), rel=1e-9)


def test_alpha_and_beta_are_rounded_to_float32_first():
    a, b, c0 = random_matrices()
    assert residual.check(naive(a, b, 0.1, 0.7, c0), a, b, alpha=0.1, beta=0.7, c0=c0).ok
    large = float32([[2.0**100]])
    assert residual.check(large * np.float32(0.1), large, float32([[1]]), alpha=0.1).worst == 0
    nan = float32([[np.nan]])  # an alpha that rounds to 0 is 0: A and B are not read
    assert residual.check(float32([[0]]), nan, nan, alpha=1e-60).ok
    for name in ("alpha", "beta"):
        for value in (1e39, np.inf, np.nan):
            with pytest.raises(ValueError, match=f"^{name}: "):
                residual.check(c0, a, b, c0=c0, **{name: value})


def test_beta_0_does_not_look_at_c0():
    a, b, c0 = random_matrices()
    assert residual.check(naive(a, b), a, b, beta=0.0, c0=np.full_like(c0, np.nan)).ok
    with pytest.raises(ValueError, match=r"^c0: "):
        residual.check(naive(a, b), a, b, beta=1.0)


def test_alpha_0_does_not_look_at_a_and_b():
    a, b, c0 = (np.full((4, 4), value, np.float32) for value in (np.nan, np.inf, 3))
    assert residual.check(2 * c0, a, b, alpha=0, beta=2, c0=c0).ok
    assert not residual.check(a, a, b, alpha=0, beta=2, c0=c0).ok


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 2), (3, 0, 2), (0, 0, 0), (3, 2, 0)])
def test_empty_shapes(m, n, k):
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    result = residual.check(np.zeros((m, n), np.float32), a, b)
    assert result.ok
    assert result.worst == 0
    assert result.relative == 0


def test_depth_0_gives_beta_c():
    a, b, c0 = np.ones((2, 0), np.float32), np.ones((0, 3), np.float32), float32([[1, 2, 3]] * 2)
    assert residual.check(2 * c0, a, b, beta=2, c0=c0).ok
    assert not residual.check(c0, a, b, beta=2, c0=c0).ok


@pytest.mark.parametrize(
    ("value", "kinds"), [(np.nan, (np.isnan,)), (np.inf, (np.isposinf, np.isneginf))]
)
@pytest.mark.parametrize("where", ["a", "b", "c0"])
def test_non_finite_inputs_reach_exactly_their_elements(where, value, kinds):
    arrays = dict(zip(("a", "b", "c0"), random_matrices(), strict=True))
    arrays[where][2, 3] = value
    c = naive(arrays["a"], arrays["b"], 1, -1, arrays["c0"])
    touched = {"a": np.s_[2, :], "b": np.s_[:, 3], "c0": np.s_[2, 3]}[where]
    assert sum(kind(c[touched]).sum() for kind in kinds) == c[touched].size

    def check(c):
        return residual.check(c, arrays["a"], arrays["b"], beta=-1, c0=arrays["c0"])

    assert check(c).ok
    row, col = 2, 3
    for wrong in {0.0, np.nan, np.inf, -np.inf} - {float(c[row, col])}:
        if not (np.isnan(wrong) and np.isnan(c[row, col])):
            spoilt = c.copy()
            spoilt[row, col] = wrong
            assert check(spoilt).wrong == 1, wrong
    leaked = c.copy()
    leaked[0, 0] = value
    assert check(leaked).first_wrong == (0, 0)


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ([np.inf, 1], [0, 1], np.nan),
        ([0, 1], [np.inf, 1], np.nan),
        ([0, 1], [np.nan, 1], np.nan),
        ([np.inf, 1], [1, -np.inf], np.nan),
        ([np.inf, -np.inf], [1, -1], np.inf),
        ([np.inf, 5], [-1, 5], -np.inf),
        ([np.nan, np.inf], [1, 1], np.nan),
    ],
)
def test_kinds_of_non_finite_sums(a, b, c):
    a, b = float32([a]), float32(b)[:, None]
    for value in (0.0, np.inf, -np.inf, np.nan):
        right = residual.check(float32([[value]]), a, b).ok
        assert right == bool(np.array_equal(value, c, equal_nan=True)), value
        negated = residual.check(float32([[-value]]), a, b, alpha=-1.0).ok
        assert negated == right


def test_overflow():
    """Beyond the range the infinity of the sign is right, and a finite value is not."""
    big, one = float32([[FLOAT32_MAX]]), float32([[1]])

    def right(value, *arguments, **scales):
        return residual.check(float32([[value]]), *arguments, **scales).ok

    assert right(np.inf, big, 2 * one)
    assert not right(-np.inf, big, 2 * one)
    assert not right(np.nan, big, 2 * one)
    assert not right(FLOAT32_MAX, big, 2 * one)
    assert right(-np.inf, big, 2 * one, alpha=-1)
    assert right(FLOAT32_MAX, big, one)
    assert not right(np.inf, big / 2, one)
    # Partial sums may leave the range although the result is in it.
    there_and_back = float32([[FLOAT32_MAX, FLOAT32_MAX / 2, -FLOAT32_MAX / 2]])
    ones = np.ones((3, 1), np.float32)
    assert right(np.inf, there_and_back, ones)
    assert right(FLOAT32_MAX, there_and_back, ones)
    assert not right(np.nan, there_and_back, ones)
    assert not right(-np.inf, there_and_back, ones)
    assert right(np.nan, float32([[FLOAT32_MAX] * 2 + [-FLOAT32_MAX] * 2]), float32([[1]] * 4))
    # A term beyond the range does not hide what the others add up to.
    assert right(np.nan, big, big) is False
    others = float32([[FLOAT32_MAX, -FLOAT32_MAX, -FLOAT32_MAX]])
    assert right(np.nan, others, float32([[FLOAT32_MAX], [1], [1]]))
    # alpha scales after the sum: the sum itself may overflow ...
    assert right(np.inf, big, 2 * one, alpha=0.25)
    assert right(FLOAT32_MAX / 2, big, 2 * one, alpha=0.25)
    # ... and beta * C0 may
    assert right(np.inf, one, one, beta=2, c0=big)
    assert not right(1.0, one, one, beta=2, c0=big)


def test_subnormal_results_must_be_kept():
    a, b = float32([[2.0**-130]]), float32([[2.0**-10]])
    assert residual.check(float32([[2.0**-140]]), a, b).ok
    assert not residual.check(float32([[0]]), a, b).ok
    halves = float32([[2.0**-75]])  # the result, 2**-150, is half the least subnormal
    assert residual.check(float32([[0]]), halves, halves).ok
    assert residual.check(float32([[LEAST_SUBNORMAL]]), halves, halves).ok
    assert not residual.check(float32([[3 * LEAST_SUBNORMAL]]), halves, halves).ok
    tiny, infinity = float32([[2.0**-130, -LEAST_SUBNORMAL]]), float32([[np.inf]])
    assert residual.check(tiny, float32([[1]]), tiny).worst == 0
    assert residual.check(float32([[np.inf, -np.inf]]), infinity, tiny).ok


def test_blocks_cover_the_matrix(monkeypatch):
    """A product of many blocks is judged as one of a single block."""
    monkeypatch.setattr(residual, "_BLOCK_EDGE", 8)
    a, b, c0 = random_matrices()
    c = naive(a, b, 1, 1, c0)
    assert residual.check(c, a, b, beta=1, c0=c0).ok
    for index in [(20, 40), (20, 3), (32, 0)]:
        c[index] = np.nan
    result = residual.check(c, a, b, beta=1, c0=c0)
    assert result.wrong == 3
    assert result.first_wrong == (20, 3)


def test_layouts_do_not_matter():
    a, b, _ = random_matrices()
    c = naive(a, b)
    padded = np.full((66, 130), np.nan, np.float32)
    view = padded[::-2, 1:124:3]
    view[...] = c
    assert residual.check(view, np.asfortranarray(a), b.T.copy().T) == residual.check(c, a, b)


@pytest.mark.parametrize(
    ("error", "name", "change"),
    [
        (ValueError, "c", {"c": np.zeros((2, 3), "f4")}),
        (ValueError, "b", {"b": np.zeros((2, 2), "f4")}),
        (ValueError, "c0", {"c0": np.zeros((3, 2), "f4"), "beta": 1}),
        (ValueError, "a", {"a": np.zeros(3, "f4")}),
        (TypeError, "a", {"a": np.zeros((2, 3))}),
        (TypeError, "b", {"b": [[1.0]]}),
        (TypeError, "c", {"c": np.zeros((2, 2), "i4")}),
    ],
)
def test_arguments_that_do_not_fit(error, name, change):
    good = {"c": np.zeros((2, 2), "f4"), "a": np.zeros((2, 3), "f4"), "b": np.zeros((3, 2), "f4")}
    with pytest.raises(error, match=f"^{name}: "):
        residual.check(**good | change)


def test_loads_by_path_and_imports_numpy_alone():
    path = Path(residual.__file__)
    script = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("checkout_residual", {str(path)!r})
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
import numpy as np
one = np.ones((1, 1), np.float32)
assert module.check(one, one, one).ok
assert not {{"sgemm", "cupy", "cuda", "torch"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-I", "-c", script], check=True)


@pytest.mark.gpu
def test_cupy_and_numpy_agree():
    cupy = pytest.importorskip("cupy")
    a, b, c0 = random_matrices(130, 70, 300)
    c = naive(a, b, 0.5, 2, c0)
    c[7, 9] = np.nan
    on_cpu = residual.check(c, a, b, alpha=0.5, beta=2, c0=c0)
    on_gpu = residual.check(*map(cupy.asarray, (c, a, b)), alpha=0.5, beta=2, c0=cupy.asarray(c0))
    assert on_gpu.first_wrong == on_cpu.first_wrong == (7, 9)
    assert on_gpu.wrong == on_cpu.wrong == 1
    assert isinstance(on_gpu.worst, float)
    tiny = cupy.asarray(float32([[2.0**-130, -(2.0**-149)]]))  # CuPy itself takes these for 0
    one, zero = cupy.ones((1, 1), np.float32), cupy.zeros((1, 2), np.float32)
    assert residual.check(tiny, one, tiny).ok
    assert residual.check(zero, one, tiny).wrong == 1
    assert residual.check(zero, cupy.full((1, 1), np.inf, np.float32), tiny).wrong == 2
    with pytest.raises(TypeError, match="mixed"):
        residual.check(cupy.asarray(c), a, b)
