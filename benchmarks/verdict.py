"""Whether one commit's kernel is slower than another's: the rule, on samples alone.

Base and head are sampled in two processes that take turns, so that the samples of one round share
their clocks and temperatures. The rule, for each benchmark:

1. The gap of a round is the logarithm of head's time over base's. Its trimmed mean over the rounds
   is the estimate, with an interval by Student's t (Tukey and McLaughlin, "Less vulnerable
   confidence and significance procedures for location", Sankhya A 25, 1963), one-sided, corrected
   for the number of benchmarks (Bonferroni): the noise that this run itself has shown.
2. More samples do not average out what differs from process to process, such as where its buffers
   lie (Kalibera and Jones, "Rigorous benchmarking in reasonable time", ISMM 2013). The interval
   therefore includes what was measured of that, and a gap counts from the smallest relevant one
   on (``Limits``); both are larger for launches of some tens of microseconds.
3. A gap in seconds must be confirmed by the cycles of the SMs: beyond their interval too, and by
   half of the smallest relevant gap. Otherwise the clocks differed, and it is ambiguous.
4. No gap is "same" only if the run would have shown one that anybody minds; else it is ambiguous.
   Where clocks move under the power cap, seconds are too noisy to show that and cycles are not:
   then cycles alone may.
5. Rounds are taken until more would not make the gaps in seconds and cycles much better known, or
   until they have cost their time (``is_precise``). The intervals alone decide that: to stop on the
   verdict would make more of them false.
6. What is not "same" is measured again in two fresh processes. It is slower, or faster, if both
   pairs say so. If they disagree, their mean decides between "same" and "ambiguous". Gaps beyond
   ``CERTAIN``, in seconds and in cycles, are not measured again. No process's luck explains them:
   of 22,269 pairs of processes of one binary, on three H200s, none differed by 0.8 % in cycles
   (in seconds, where clocks moved, some by 1.8 %).

``calibrate`` measures how often the rule is wrong.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import copysign, expm1, hypot, isfinite, log
from statistics import NormalDist, median

from .distributions import t_quantile, trimmed_mean

CERTAIN = 0.02  # as a logarithm of the time, like all gaps
ERROR_RATE = 0.05  # of one pair of processes, all benchmarks together
MIN_ROUNDS = 3
PRECISE_FROM_ROUNDS = 6  # fewer may agree by chance
ROUNDS_PER_TRIMMED = 10  # one lowest and one highest gap left out per so many
SHORT_LAUNCH_SECONDS = 60e-6


@dataclass(frozen=True)
class Limits:
    """``relevant`` is the smallest gap that counts, ``visible`` the one that must not stay hidden,
    ``precise`` what the rounds may leave unknown of a gap, ``between_processes`` the standard
    deviation of the gap between two processes of one binary."""

    relevant: float
    visible: float
    precise: float
    between_processes: float


LIMITS = Limits(relevant=0.004, visible=0.01, precise=0.0025, between_processes=0.0007)
SHORT_LAUNCH_LIMITS = Limits(relevant=0.009, visible=0.02, precise=0.005, between_processes=0.0025)


class Verdict(Enum):
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    AMBIGUOUS = "ambiguous"
    NO_MEASUREMENT = "no measurement"
    WRONG = "wrong"
    SAME_BINARY = "same binary"
    BETTER = "better"
    WORSE = "worse"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Samples:
    """Seconds and SM cycles per launch, one of each per round."""

    seconds: Sequence[float]
    cycles: Sequence[float]

    def first(self, rounds: int) -> "Samples":
        return Samples(self.seconds[:rounds], self.cycles[:rounds])


@dataclass(frozen=True)
class Gap:
    """How much longer head takes than base, as a logarithm: an estimate and half of its
    interval."""

    estimate: float
    margin: float

    @property
    def change(self) -> float:
        """Of the time, as a fraction of base's."""
        return expm1(self.estimate)

    @property
    def interval(self) -> tuple[float, float]:
        """Of the change."""
        return expm1(self.estimate - self.margin), expm1(self.estimate + self.margin)

    def mean(self, other: "Gap") -> "Gap":
        """The mean of two independent gaps."""
        return Gap((self.estimate + other.estimate) / 2, hypot(self.margin, other.margin) / 2)


@dataclass(frozen=True)
class Comparison:
    """The verdict on one benchmark, what it rests on, and in words what the verdict does not say.
    The gaps are None if there was no measurement."""

    verdict: Verdict
    seconds: Gap | None = None
    cycles: Gap | None = None
    detail: str = ""
    limits: Limits = LIMITS


def compare(base: Samples, head: Samples, benchmarks: int) -> Comparison:
    """The verdict of one pair of processes on one of so many ``benchmarks``."""
    series = (base.seconds, head.seconds, base.cycles, head.cycles)
    rounds = len(base.seconds)
    if rounds < MIN_ROUNDS or any(len(values) != rounds for values in series):
        counts = ", ".join(str(len(values)) for values in series)
        return Comparison(
            Verdict.NO_MEASUREMENT, detail=f"{MIN_ROUNDS} whole rounds are needed, found {counts}"
        )
    if not all(isfinite(value) and value > 0 for values in series for value in values):
        return Comparison(Verdict.NO_MEASUREMENT, detail="a sample is no positive number")
    limits = _limits(base)
    between = NormalDist().inv_cdf(_confidence(benchmarks)) * limits.between_processes
    seconds, cycles = (
        Gap(gap.estimate, hypot(gap.margin, between))
        for gap in _gaps_of_rounds(base, head, benchmarks)
    )
    return decide(seconds, cycles, limits)


def is_precise(base: Samples, head: Samples, benchmarks: int) -> bool:
    """Whether a pair of processes has sampled enough rounds."""
    if len(base.seconds) < PRECISE_FROM_ROUNDS:
        return False
    precise = _limits(base).precise
    return all(gap.margin <= precise for gap in _gaps_of_rounds(base, head, benchmarks))


def until_precise(base: Samples, head: Samples, benchmarks: int) -> tuple[Samples, Samples]:
    """The rounds that two processes would have sampled without the others that they took turns
    with."""
    for rounds in range(PRECISE_FROM_ROUNDS, len(base.seconds)):
        pair = base.first(rounds), head.first(rounds)
        if is_precise(*pair, benchmarks):
            return pair
    return base, head


def settle(first: Comparison, again: Callable[[], Comparison]) -> Comparison:
    """The verdict of a pair of processes and, where it takes one, of a fresh pair (``again``)."""
    return first if is_settled(first) else combine(first, again())


def is_settled(first: Comparison) -> bool:
    """Whether a first pair of processes needs no second one."""
    if first.verdict in (Verdict.SAME, Verdict.NO_MEASUREMENT):
        return True
    assert first.seconds is not None
    assert first.cycles is not None
    gaps = first.seconds, first.cycles
    return first.verdict is not Verdict.AMBIGUOUS and all(abs(g.estimate) > CERTAIN for g in gaps)


def combine(first: Comparison, second: Comparison) -> Comparison:
    """The verdict of two pairs of processes."""
    if second.verdict is Verdict.NO_MEASUREMENT:
        return second
    assert first.seconds is not None
    assert first.cycles is not None
    assert second.seconds is not None
    assert second.cycles is not None
    pooled = decide(
        first.seconds.mean(second.seconds), first.cycles.mean(second.cycles), second.limits
    )
    first_was_blind = first.verdict is Verdict.AMBIGUOUS
    if first.verdict is second.verdict or (first_was_blind and second.verdict is Verdict.SAME):
        verdict, detail = second.verdict, second.detail
    elif pooled.verdict is Verdict.SAME or (first_was_blind and pooled.verdict is second.verdict):
        verdict, detail = pooled.verdict, pooled.detail
    else:
        verdict = Verdict.AMBIGUOUS
        detail = "two pairs of processes disagree: " + " and ".join(
            f"{pair.change:+.2%}" for pair in (first.seconds, second.seconds)
        )
    return Comparison(verdict, pooled.seconds, pooled.cycles, detail, pooled.limits)


def decide(seconds: Gap, cycles: Gap, limits: Limits = LIMITS) -> Comparison:
    """The verdict on a gap in seconds that cycles confirm or do not."""

    def comparison(verdict: Verdict, detail: str = "") -> Comparison:
        return Comparison(verdict, seconds, cycles, detail, limits)

    def nothing_hides(gap: Gap) -> bool:
        size = abs(gap.estimate)
        return size <= limits.relevant and size + gap.margin < limits.visible

    size = abs(seconds.estimate)
    if nothing_hides(seconds):
        return comparison(Verdict.SAME)
    if size <= max(limits.relevant, seconds.margin) and nothing_hides(cycles):
        why = f"in cycles; seconds are too noisy, {seconds.margin:.2%}, as the clocks moved"
        return comparison(Verdict.SAME, why)
    if size <= limits.relevant:
        why = f"the noise, {seconds.margin:.2%}, could hide a change of {limits.visible:.0%}"
        return comparison(Verdict.AMBIGUOUS, why)
    if size <= seconds.margin:
        why = f"the change, {seconds.change:+.2%}, is within the noise, {seconds.margin:.2%}"
        return comparison(Verdict.AMBIGUOUS, why)
    confirmed = copysign(1, seconds.estimate) * cycles.estimate
    if confirmed <= max(cycles.margin, limits.relevant / 2):
        changes = f"{seconds.change:+.2%} in seconds but {cycles.change:+.2%} in cycles"
        why = f"{changes}: the clocks differed"
        return comparison(Verdict.AMBIGUOUS, why)
    return comparison(Verdict.SLOWER if seconds.estimate > 0 else Verdict.FASTER)


def _limits(base: Samples) -> Limits:
    short = median(base.seconds) < SHORT_LAUNCH_SECONDS
    return SHORT_LAUNCH_LIMITS if short else LIMITS


def _confidence(benchmarks: int) -> float:
    return 1 - ERROR_RATE / benchmarks


def _gaps_of_rounds(base: Samples, head: Samples, benchmarks: int) -> tuple[Gap, Gap]:
    """The gaps in seconds and in cycles, as far as the rounds themselves tell."""

    def gap(before: Sequence[float], after: Sequence[float]) -> Gap:
        gaps = [log(h / b) for b, h in zip(before, after, strict=True)]
        trim = len(gaps) // ROUNDS_PER_TRIMMED
        estimate, error = trimmed_mean(gaps, trim)
        degrees = len(gaps) - 2 * trim - 1
        return Gap(estimate, t_quantile(_confidence(benchmarks), degrees) * error)

    return gap(base.seconds, head.seconds), gap(base.cycles, head.cycles)
