"""Is a product right? The numerical check behind every measurement and test of the ladder.

The reference is computed in float64, with NumPy or CuPy, whichever holds the arrays. An element is
right if it lies within the rounding error that any order of FP32 operations may make:

    |C - C_ref| <= g(K + 2) * (|alpha| * |A| @ |B| + |beta| * |C0|) + (|alpha| * K + 2) * 2**-150

with g(n) = n*u / (1 - n*u) and u = 2**-24, alpha and beta first rounded to float32. The last term
is what rounding in the subnormal range adds. Infinities and NaNs of the inputs must reach exactly
the elements whose sums they are terms of. Overflow is apart: where the terms of an element are so
large that a partial sum in FP32 may leave the range, the infinity of that sign is right as well
(and NaN, where both signs may).

The module imports NumPy and the standard library alone, so that it can be loaded by path.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from types import ModuleType
from typing import Any

import numpy as np

UNIT_ROUNDOFF = 2.0**-24
HALF_LEAST_SUBNORMAL = 2.0**-150
FLOAT32_MAX = float(np.finfo(np.float32).max)

# Work is done in blocks of at most this many rows and columns, and of A or B at most this many
# elements at once: a few hundred megabytes of float64 whatever the size of the product.
_BLOCK_EDGE = 2048
_BLOCK_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Residual:
    """How far a product is from its float64 reference.

    ``worst`` is the largest error as a fraction of its element's bound, ``relative`` the largest
    error as a fraction of the largest reference element (the usual 1e-4 figure); both are over the
    finite elements and ``inf`` where an element is non-finite that should not be, or the other way
    round. ``wrong`` counts the elements out of bound, ``first_wrong`` is the index of the first of
    them in row-major order, and ``summary`` says all this in one line.
    """

    worst: float
    relative: float
    wrong: int
    first_wrong: tuple[int, int] | None
    summary: str

    @property
    def ok(self) -> bool:
        """Whether every element is right."""
        return self.wrong == 0


def check(
    c: Any, a: Any, b: Any, *, alpha: float = 1.0, beta: float = 0.0, c0: Any = None
) -> Residual:
    """Compare ``c`` (M×N) with ``alpha * a @ b + beta * c0`` for ``a`` (M×K) and ``b`` (K×N).

    All arrays are float32, all NumPy or all CuPy, of any layout. ``c0`` is C as it was before the
    product; it is needed, and looked at, only where ``beta`` is not 0. Raises ``ValueError`` for
    shapes that do not match, ``TypeError`` for other kinds of arrays.
    """
    alpha, beta = _as_float32("alpha", alpha), _as_float32("beta", beta)
    arrays = {"c": c, "a": a, "b": b}
    if beta != 0.0:
        if c0 is None:
            raise ValueError("c0: beta is not 0, so C as it was before the product is needed")
        arrays["c0"] = c0
    xp = _array_module(arrays)
    _require_shapes(arrays)
    (rows, depth), cols = a.shape, b.shape[1]
    if (depth + 2) * UNIT_ROUNDOFF >= 1:
        raise ValueError(f"a, b: K is {depth}; the bound holds for K up to 2**24 - 3")

    worst = largest_error = largest_reference = 0.0
    wrong = 0
    first: tuple[int, int] | None = None
    comparison = ""
    for row_range in _blocks(rows, depth):
        for col_range in _blocks(cols, depth):
            found = _as_float64(xp, c[row_range, col_range])
            expected = _Expected(
                xp,
                _as_float64(xp, a[row_range]),
                _as_float64(xp, b[:, col_range]),
                _as_float64(xp, c0[row_range, col_range]) if beta != 0.0 else None,
                alpha,
                beta,
            )
            error, reference = expected.compare(found)
            worst = max(worst, float((error / expected.bound).max()))
            largest_error = max(largest_error, float(error.max()))
            largest_reference = max(largest_reference, float(abs(reference).max()))
            out_of_bound = error > expected.bound
            wrong_here = int(out_of_bound.sum())
            if wrong_here:
                row, col = divmod(int(out_of_bound.ravel().argmax()), found.shape[1])
                index = (row_range.start + row, col_range.start + col)
                if first is None or index < first:
                    first = index
                    value = float(found[row, col])
                    comparison = f"found {value:.9g}, expected {expected.describe(row, col)}"
            wrong += wrong_here

    relative = largest_error and (largest_error / largest_reference if largest_reference else inf)
    if wrong == 0:
        summary = f"right: {worst:.3g} of the error bound, {relative:.3g} of the largest element"
    else:
        summary = f"wrong: {wrong} of {rows * cols} elements, the first at {first}: {comparison}"
    return Residual(worst, relative, wrong, first, summary)


class _Expected:
    """What one block of C must be: ``value`` ± ``bound``, or which non-finite values may stand."""

    def __init__(self, xp: ModuleType, a: Any, b: Any, c0: Any, alpha: float, beta: float) -> None:
        self._xp = xp
        depth = a.shape[1]
        product = magnitude = addend = xp.zeros((a.shape[0], b.shape[1]))
        positive = negative = undefined = xp.zeros(product.shape, bool)  # non-finite terms
        reads_ab = alpha != 0.0 and depth > 0  # otherwise A and B are no part of the result
        if reads_ab:
            a_finite, b_finite = _finite(xp, a), _finite(xp, b)
            product, magnitude = a_finite @ b_finite, abs(a_finite) @ abs(b_finite)
            positive, negative, undefined = _non_finite_terms(xp, a, b)
            if alpha < 0.0:
                positive, negative = negative, positive
        if c0 is not None:
            addend = beta * _finite(xp, c0)
            same_sign = (c0 > 0) == (beta > 0)
            positive = positive | (xp.isinf(c0) & same_sign)
            negative = negative | (xp.isinf(c0) & ~same_sign)
            undefined = undefined | xp.isnan(c0)

        size = abs(alpha)
        gamma = (depth + 2) * UNIT_ROUNDOFF / (1 - (depth + 2) * UNIT_ROUNDOFF)
        self.value = alpha * product + addend
        self.bound = (
            gamma * (size * magnitude + abs(addend)) + (size * depth + 2) * HALF_LEAST_SUBNORMAL
        )
        self._finite = ~(positive | negative | undefined)

        largest = max(1.0, size)  # the sum is rounded before alpha scales it, and after
        limit = FLOAT32_MAX / (1 + gamma)
        may_be_positive, may_be_negative = positive, negative
        if bool((largest * magnitude + abs(addend) > limit).any()):
            above, below = xp.maximum(addend, 0.0), xp.maximum(-addend, 0.0)
            if reads_ab:
                terms = _sums_by_sign(xp, a_finite if alpha > 0.0 else -a_finite, b_finite)
                above, below = above + largest * terms[0], below + largest * terms[1]
            may_be_positive = positive | (above > limit)
            may_be_negative = negative | (below > limit)
        self._positive = may_be_positive & ~(negative | undefined)
        self._negative = may_be_negative & ~(positive | undefined)
        self._nan = undefined | (may_be_positive & may_be_negative)

    def compare(self, found: Any) -> tuple[Any, Any]:
        """The errors of ``found`` and the reference values that they are errors from: both 0 where
        a non-finite value is right, the error ``inf`` where ``found`` is of a wrong kind."""
        xp = self._xp
        is_finite, is_nan = xp.isfinite(found), xp.isnan(found)
        infinite = xp.where(found > 0, self._positive, self._negative)
        right_kind = xp.where(is_finite, self._finite, xp.where(is_nan, self._nan, infinite))
        reference = xp.where(is_finite & self._finite, self.value, 0.0)
        error = xp.where(is_finite & self._finite, abs(_finite(xp, found) - self.value), 0.0)
        return xp.where(right_kind, error, inf), reference

    def describe(self, row: int, col: int) -> str:
        kinds = []
        if self._finite[row, col]:
            value, bound = float(self.value[row, col]), float(self.bound[row, col])
            kinds.append(f"{value:.9g} within {bound:.3g}")
        allowed = {"inf": self._positive, "-inf": self._negative, "nan": self._nan}
        kinds += [kind for kind, where in allowed.items() if where[row, col]]
        return " or ".join(kinds)


def _sums_by_sign(xp: ModuleType, a: Any, b: Any) -> tuple[Any, Any]:
    """The positive terms of ``a @ b`` summed, and the magnitudes of the negative ones."""
    a_above, a_below = xp.maximum(a, 0.0), xp.maximum(-a, 0.0)
    b_above, b_below = xp.maximum(b, 0.0), xp.maximum(-b, 0.0)
    return a_above @ b_above + a_below @ b_below, a_above @ b_below + a_below @ b_above


def _non_finite_terms(xp: ModuleType, a: Any, b: Any) -> tuple[Any, Any, Any]:
    """Which elements of ``a @ b`` have a term that is +inf, one that is -inf, one that is NaN.

    The terms are counted by kind, not computed, as a BLAS may skip 0 * NaN.
    """
    a_inf, b_inf = xp.isinf(a), xp.isinf(b)
    a_nan, b_nan = xp.isnan(a), xp.isnan(b)
    if not (a_inf.any() or b_inf.any() or a_nan.any() or b_nan.any()):
        nowhere = xp.zeros((a.shape[0], b.shape[1]), bool)
        return nowhere, nowhere, nowhere

    a_sign, b_sign = _signs(xp, a), _signs(xp, b)
    a_inf_sign, b_inf_sign = a_sign * a_inf, b_sign * b_inf
    finite_a_sign = a_sign * ~a_inf
    balance = a_inf_sign @ b_sign + finite_a_sign @ b_inf_sign  # +inf terms less -inf terms
    count = abs(a_inf_sign) @ abs(b_sign) + abs(finite_a_sign) @ abs(b_inf_sign)
    inf_times_zero = abs(a_inf_sign) @ (b == 0).astype(np.float64)
    zero_times_inf = (a == 0).astype(np.float64) @ abs(b_inf_sign)
    undefined = (
        a_nan.any(axis=1)[:, None]
        | b_nan.any(axis=0)[None, :]
        | (inf_times_zero + zero_times_inf > 0)
    )
    return count + balance > 0, count - balance > 0, undefined


def _as_float64(xp: ModuleType, array: Any) -> Any:
    """The float32 array in float64, by way of its bits where it is subnormal: CuPy's conversions
    and comparisons of float32 take those for 0."""
    bits = array.view(np.int32)
    magnitude = bits & 0x7FFFFFFF
    subnormal = xp.where(bits < 0, -1.0, 1.0) * magnitude * 2.0**-149
    return xp.where(magnitude < 0x00800000, subnormal, array.astype(np.float64))


def _finite(xp: ModuleType, array: Any) -> Any:
    """The array with 0 for what is not finite."""
    return xp.where(xp.isfinite(array), array, 0.0)


def _signs(xp: ModuleType, array: Any) -> Any:
    """-1, 0 or 1 for each element, 0 for NaN."""
    return (array > 0).astype(np.float64) - (array < 0).astype(np.float64)


def _blocks(extent: int, depth: int) -> Iterator[slice]:
    step = max(1, min(_BLOCK_EDGE, _BLOCK_ELEMENTS // max(1, depth)))
    for start in range(0, extent, step):
        yield slice(start, min(start + step, extent))


def _as_float32(name: str, value: float) -> float:
    with np.errstate(over="ignore"):
        rounded = float(np.float32(value))
    if not np.isfinite(rounded):
        raise ValueError(f"{name}: {value!r} is not a finite float32")
    return rounded


def _array_module(arrays: dict[str, Any]) -> ModuleType:
    modules = set()
    for name, array in arrays.items():
        module = type(array).__module__.partition(".")[0]
        if module not in ("numpy", "cupy") or not hasattr(array, "dtype"):
            raise TypeError(f"{name}: a {type(array).__name__}, not a NumPy or CuPy array")
        if array.dtype != np.float32:
            raise TypeError(f"{name}: dtype is {array.dtype}, not float32")
        modules.add(module)
    if len(modules) > 1:
        raise TypeError(f"{', '.join(arrays)}: NumPy and CuPy arrays mixed")
    return sys.modules[modules.pop()]


def _require_shapes(arrays: dict[str, Any]) -> None:
    for name, array in arrays.items():
        if array.ndim != 2:
            raise ValueError(f"{name}: {array.ndim}-dimensional, not a matrix")
    a, b = arrays["a"], arrays["b"]
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"b: shape {b.shape} does not follow a's {a.shape}")
    for name in arrays.keys() & {"c", "c0"}:
        if arrays[name].shape != (a.shape[0], b.shape[1]):
            raise ValueError(
                f"{name}: shape is {arrays[name].shape}, not {(a.shape[0], b.shape[1])}"
            )
