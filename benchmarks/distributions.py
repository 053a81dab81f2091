"""The few distributions that the gate's arithmetic takes, from the standard library alone."""

from collections.abc import Callable
from functools import cache
from math import exp, inf, lgamma, log, log1p, sqrt

_PRECISION = 1e-12


@cache
def t_quantile(p: float, degrees: int) -> float:
    """The value that Student's t with so many degrees of freedom stays below with probability
    ``p``, at least one half."""

    def cumulative(t: float) -> float:
        return 1 - _beta_cumulative(degrees / (degrees + t * t), degrees / 2, 0.5) / 2

    high = 1.0
    while cumulative(high) < p:
        high *= 2
    return _solve(cumulative, p, 0, high)


@cache
def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a probability of which ``trials`` independent trials hit ``hits``."""
    tail = (1 - confidence) / 2

    def quantile(p: float, a: int, b: int) -> float:
        return _solve(lambda x: _beta_cumulative(x, a, b), p, 0, 1)

    low = quantile(tail, hits, trials - hits + 1) if hits else 0.0
    high = quantile(1 - tail, hits + 1, trials - hits) if hits < trials else 1.0
    return low, high


def _solve(rising: Callable[[float], float], target: float, low: float, high: float) -> float:
    while high - low > _PRECISION * max(1.0, high):
        middle = (low + high) / 2
        if rising(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _beta_cumulative(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz's method; Press
    et al., Numerical Recipes, section 6.4)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges fast for the other side
        return 1 - _beta_cumulative(1 - x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    tiny = 1e-300
    c = 1.0
    d = fraction = 1 / _away_from_zero(1 - (a + b) * x / (a + 1), tiny)
    before = inf
    m = 1
    while abs(before - fraction) > 1e-15 * abs(fraction):
        before = fraction
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for numerator in (even, odd):
            d = 1 / _away_from_zero(1 + numerator * d, tiny)
            c = _away_from_zero(1 + numerator / c, tiny)
            fraction *= c * d
        m += 1
    return front * fraction


def _away_from_zero(x: float, tiny: float) -> float:
    return x if abs(x) > tiny else tiny


def trimmed_mean(values: list[float], trim: int) -> tuple[float, float]:
    """The mean without the ``trim`` lowest and highest values, and its standard error (Tukey and
    McLaughlin, 1963: by the deviation of the values with those replaced by their neighbours)."""
    ordered = sorted(values)
    count = len(ordered)
    kept = ordered[trim : count - trim]
    winsorised = [kept[0]] * trim + kept + [kept[-1]] * trim
    centre = sum(winsorised) / count
    variance = sum((value - centre) ** 2 for value in winsorised) / (count - 1)
    return sum(kept) / len(kept), sqrt(variance * count) / len(kept)
