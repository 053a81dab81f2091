"""The gate's rule: what it says of given samples, and how often it is wrong under known noise."""

from math import exp, inf, log1p, nan
from random import Random

import pytest

from benchmarks.distributions import clopper_pearson, t_quantile, trimmed_mean
from benchmarks.verdict import (
    CERTAIN,
    LIMITS,
    PRECISE_FROM_ROUNDS,
    SHORT_LAUNCH_LIMITS,
    Comparison,
    Gap,
    Samples,
    Verdict,
    combine,
    compare,
    decide,
    is_precise,
    is_settled,
    settle,
    until_precise,
)

BENCHMARKS = 42
ROUNDS = 10

# Noise as measured on an H200 at 1024x1024x1024 and above, in logarithms of the time.
WITHIN_PROCESS = 0.001
BETWEEN_PROCESSES = 0.0006


class Noise:
    """Samples of processes: each process has an offset, each sample noise, some a disturbance."""

    def __init__(self, seed, between=BETWEEN_PROCESSES, within=WITHIN_PROCESS, disturbed=0.02):
        self.random = Random(seed)
        self.between, self.within, self.disturbed = between, within, disturbed

    def process(self, planted=0.0, rounds=ROUNDS):
        offset = self.random.gauss(0, self.between) + log1p(planted)
        gaps = [
            offset
            + self.random.gauss(0, self.within)
            + (self.random.random() < self.disturbed) * self.random.expovariate(100)
            for _ in range(rounds)
        ]
        return Samples([1e-3 * exp(gap) for gap in gaps], [2e6 * exp(gap) for gap in gaps])

    def pair(self, planted=0.0):
        return compare(self.process(), self.process(planted), BENCHMARKS)

    def verdict(self, planted=0.0):
        return settle(self.pair(planted), lambda: self.pair(planted)).verdict


def steady(*seconds, cycles=None):
    return Samples(seconds, cycles or [value * 1e9 for value in seconds])


def of_gflops(gflops, flops=1e9, rounds=4):
    return steady(*[flops / (gflops * 1e9)] * rounds)


def test_direction():
    """A rise of GFLOPS is an improvement, whatever the size of the numbers."""
    assert compare(of_gflops(100), of_gflops(160), 1).verdict is Verdict.FASTER
    assert compare(of_gflops(160), of_gflops(50), 1).verdict is Verdict.SLOWER
    assert compare(of_gflops(160), of_gflops(160), 1).verdict is Verdict.SAME


def test_the_change_and_its_interval():
    comparison = compare(of_gflops(160), of_gflops(50), 1)
    assert comparison.seconds.change == pytest.approx(2.2)
    low, high = comparison.seconds.interval
    assert 2.19 < low < 2.2 < high < 2.21


@pytest.mark.parametrize("scale", [0.1, 1.0, 1e6])
def test_units_do_not_matter(scale):
    noise = Noise(1)
    base, head = noise.process(), noise.process(0.01)
    scaled = [Samples([s * scale for s in x.seconds], x.cycles) for x in (base, head)]
    one, other = compare(base, head, 42), compare(*scaled, 42)
    assert one.verdict is other.verdict
    assert other.seconds.estimate == pytest.approx(one.seconds.estimate)


def test_swapping_base_and_head_turns_the_verdict_round():
    noise = Noise(2)
    base, head = noise.process(), noise.process(0.02)
    assert compare(base, head, 42).verdict is Verdict.SLOWER
    assert compare(head, base, 42).verdict is Verdict.FASTER


def test_drift_that_both_share_is_no_gap():
    drift = [1 + 0.01 * i for i in range(8)]
    assert compare(steady(*drift), steady(*drift), 42).verdict is Verdict.SAME


def test_one_disturbed_round_decides_nothing():
    base = steady(*[1.0] * 10)
    head = steady(*[1.0] * 9, 1.5)
    assert compare(base, head, 42).verdict is Verdict.SAME


def test_a_gap_that_cycles_do_not_confirm_is_ambiguous():
    base = steady(*[1.0] * 8)
    slow_clock = steady(*[1.02] * 8, cycles=[1e9] * 8)
    comparison = compare(base, slow_clock, 42)
    assert comparison.verdict is Verdict.AMBIGUOUS
    assert "the clocks differed" in comparison.detail


def test_noise_that_would_hide_a_change_is_ambiguous():
    base = steady(*[1.0] * 8)
    head = steady(0.97, 1.03, 0.98, 1.02, 0.97, 1.03, 0.98, 1.02)
    comparison = compare(base, head, 42)
    assert comparison.verdict is Verdict.AMBIGUOUS
    assert "could hide" in comparison.detail


def test_where_clocks_move_cycles_show_that_nothing_changed():
    """As under the power cap: seconds vary by 0.8 %, cycles by 0.1 %."""
    random = Random(1)
    clocks = [[1.9e9 * exp(random.gauss(0, 0.008)) for _ in range(ROUNDS)] for _ in range(2)]
    cycles = [[2e6 * exp(random.gauss(0, 0.001)) for _ in range(ROUNDS)] for _ in range(2)]

    def process(of, planted=0.0):
        slowed = [(1 + planted) * count for count in cycles[of]]
        return Samples([c / f for c, f in zip(slowed, clocks[of], strict=True)], slowed)

    same = compare(process(0), process(1), BENCHMARKS)
    assert same.verdict is Verdict.SAME
    assert "cycles" in same.detail
    assert compare(process(0), process(1, planted=0.01), BENCHMARKS).verdict is not Verdict.SAME


def test_a_gap_within_the_noise_is_ambiguous():
    base = steady(*[1.0] * 8)
    head = steady(0.97, 1.04, 0.98, 1.03, 0.99, 1.04, 0.98, 1.03)
    comparison = compare(base, head, 42)
    assert comparison.verdict is Verdict.AMBIGUOUS
    assert "within the noise" in comparison.detail


@pytest.mark.parametrize(
    ("base", "head"),
    [
        (steady(), steady()),
        (steady(1.0, 1.0), steady(1.0, 1.0)),
        (steady(1.0, 1.0, 1.0), steady(1.0, 1.0)),
        (steady(1.0, 1.0, nan), steady(1.0, 1.0, 1.0)),
        (steady(1.0, 1.0, 1.0), steady(1.0, inf, 1.0)),
        (steady(1.0, 1.0, 1.0), steady(1.0, 0.0, 1.0)),
        (steady(1.0, 1.0, 1.0), Samples([1.0] * 3, [1e9, nan, 1e9])),
    ],
)
def test_no_measurement(base, head):
    comparison = compare(base, head, 42)
    assert comparison.verdict is Verdict.NO_MEASUREMENT
    assert comparison.detail
    assert comparison.seconds is None


def of(change, cycles=None, margin=0.001):
    return decide(Gap(change, margin), Gap(change if cycles is None else cycles, margin))


SLOWER, SAME, FASTER = of(0.006), of(0.001), of(-0.006)
BLIND = of(0.006, cycles=0.0)


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (SLOWER, SLOWER, Verdict.SLOWER),
        (FASTER, FASTER, Verdict.FASTER),
        (SLOWER, FASTER, Verdict.SAME),  # the mean of both is nothing
        (SLOWER, SAME, Verdict.SAME),  # the mean is below what counts
        (of(0.012), SAME, Verdict.AMBIGUOUS),  # the mean is not
        (BLIND, SAME, Verdict.SAME),
        (BLIND, of(0.012), Verdict.SLOWER),
        (BLIND, BLIND, Verdict.AMBIGUOUS),
        (SLOWER, BLIND, Verdict.AMBIGUOUS),
        (SLOWER, Comparison(Verdict.NO_MEASUREMENT), Verdict.NO_MEASUREMENT),
    ],
)
def test_two_pairs(first, second, verdict):
    assert combine(first, second).verdict is verdict


@pytest.mark.parametrize("within", [0.0005, 0.003])
def test_rounds_stop_where_the_gap_is_known(within):
    noise = Noise(6, within=within, disturbed=0)
    base, head = noise.process(rounds=60), noise.process(rounds=60)
    stopped, _ = until_precise(base, head, BENCHMARKS)
    rounds = len(stopped.seconds)
    assert is_precise(base.first(rounds), head.first(rounds), BENCHMARKS)
    assert not is_precise(base.first(rounds - 1), head.first(rounds - 1), BENCHMARKS)
    assert (rounds == PRECISE_FROM_ROUNDS) == (within == 0.0005)


def test_rounds_go_on_where_the_clocks_move():
    """Cycles alone do not make a gap known, nor do seconds."""
    steady_ones = steady(*[1.0] * 20)
    noisy = [1.0, 1.02] * 10
    for head in (Samples(noisy, steady_ones.cycles), Samples(steady_ones.seconds, noisy)):
        assert until_precise(steady_ones, head, 1) == (steady_ones, head)


@pytest.mark.parametrize("gap", [0.0, 0.004, 0.5])
def test_rounds_do_not_stop_for_a_verdict(gap):
    noise = Noise(7)
    base, head = noise.process(rounds=30), noise.process(rounds=30)
    slowed = Samples(*([value * (1 + gap) for value in s] for s in (head.seconds, head.cycles)))
    rounds = [len(until_precise(base, other, 42)[0].seconds) for other in (head, slowed)]
    assert rounds[0] == rounds[1]


def test_what_is_measured_again():
    assert is_settled(SAME)
    assert is_settled(of(2 * CERTAIN))
    assert is_settled(of(-2 * CERTAIN))
    assert not is_settled(of(2 * CERTAIN, 0.6 * CERTAIN))
    assert not is_settled(of(0.6 * CERTAIN, 2 * CERTAIN))
    assert is_settled(Comparison(Verdict.NO_MEASUREMENT))
    assert not is_settled(SLOWER)
    assert not is_settled(FASTER)
    assert not is_settled(BLIND)


def test_false_alarms_of_whole_gates():
    """Identical code, 42 benchmarks: at most one gate of 300 is red, and few cannot tell."""
    noise = Noise(3)
    alarms = undecided = 0
    gates = 300
    for _ in range(gates):
        verdicts = {noise.verdict() for _ in range(BENCHMARKS)}
        alarms += Verdict.SLOWER in verdicts
        undecided += Verdict.AMBIGUOUS in verdicts
    assert alarms <= 1
    assert undecided <= gates * 0.05


@pytest.mark.parametrize(("planted", "rate"), [(0.005, 0.5), (0.01, 0.95), (0.02, 1), (0.05, 1)])
def test_planted_slowdowns_are_found(planted, rate):
    noise = Noise(4)
    trials = 500
    found = sum(noise.verdict(planted) is Verdict.SLOWER for _ in range(trials))
    assert found >= rate * trials


def test_noise_between_processes_is_not_called_slower():
    """With half as much again of it, still one red gate of a hundred at most."""
    noise = Noise(5, between=1.5 * BETWEEN_PROCESSES)
    alarms = sum(
        any(noise.verdict() is Verdict.SLOWER for _ in range(BENCHMARKS)) for _ in range(100)
    )
    assert alarms <= 1


def test_a_gap_below_what_counts_is_no_alarm():
    assert of(LIMITS.relevant * 0.99).verdict is Verdict.SAME


def test_launches_of_microseconds_have_limits_of_their_own():
    assert SHORT_LAUNCH_LIMITS.relevant > 0.006 > LIMITS.relevant
    short = compare(steady(*[1e-5] * 8), steady(*[1.006e-5] * 8), 42)
    assert short.verdict is Verdict.SAME
    assert compare(steady(*[1e-3] * 8), steady(*[1.006e-3] * 8), 42).verdict is Verdict.SLOWER


def test_trimmed_mean():
    assert trimmed_mean([5.0, 1.0, 3.0], 0) == (3.0, pytest.approx(2 / 3**0.5))
    mean, error = trimmed_mean([1.0, 2.0, 3.0, 100.0], 1)
    assert mean == 2.5
    assert error == pytest.approx((4 * (1 / 3)) ** 0.5 / 2)


@pytest.mark.parametrize(
    ("p", "degrees", "t"),
    [(0.975, 1, 12.7062), (0.975, 5, 2.5706), (0.999, 7, 4.7853), (0.95, 30, 1.6973)],
)
def test_student_s_t(p, degrees, t):
    assert t_quantile(p, degrees) == pytest.approx(t, abs=1e-4)


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [(0, 300, 0, 0.012221), (1, 300, 0.0000844, 0.018431), (5, 10, 0.187086, 0.812914)],
)
def test_exact_intervals(hits, trials, low, high):
    assert clopper_pearson(hits, trials) == pytest.approx((low, high), abs=1e-6)
    mirrored = clopper_pearson(trials - hits, trials)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-6)
