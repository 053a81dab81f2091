"""The instrument's arithmetic: how launches are batched, sampled, rotated, stopped and verified."""

import sys
import weakref
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest

from benchmarks import clock, timing, turns
from benchmarks.gpu import Reading
from benchmarks.timing import Elapsed, Plan, Sampler, WrongResultError, low_end, reason_to_stop
from benchmarks.turns import TurnsSampler


class Device:
    """A device with a clock of its own: stream, workload and monitor in one.

    Launch number i of its life takes ``cost(i)`` seconds, and its SMs run at ``mhz``.
    """

    max_sm_mhz = 1980

    def __init__(self, cost, sets=3, mhz=1980):
        self.cost = cost
        self.sets = sets
        self.mhz = mhz
        self.clock = 0.0
        self.cycles = 0.0
        self.captured = None
        self.history = []  # what was done with the operand sets, in order
        self.wrong_after = None  # verifications that pass

    def mark(self):
        return self.clock, self.cycles

    def elapsed(self, start, end):
        return Elapsed(end[0] - start[0], end[1] - start[1])

    def capture(self, work):
        self.captured = captured = []
        work()
        self.captured = None

        def replay():
            for i in captured:
                self.launch(i)

        return replay

    def launch(self, i):
        if self.captured is not None:
            self.captured.append(i)
            return
        seconds = self.cost(len(self.launched()))
        self.clock += seconds
        self.cycles += seconds * self.mhz * 1e6
        self.history.append(i)

    def launched(self):
        return [entry for entry in self.history if isinstance(entry, int)]

    def poison(self):
        self.history.append("poison")

    def verify(self, launched):
        self.history.append(f"verify {launched}")
        verifications = sum(str(entry).startswith("verify") for entry in self.history)
        if self.wrong_after is not None and verifications > self.wrong_after:
            raise WrongResultError("wrong")

    def read(self):
        return Reading(1980, 3201, 350.0, 40, ())


def prepared(device):
    sampler = Sampler(device, device, device)
    sampler.prepare()
    return sampler


@pytest.mark.case("2.3", "2.4")
@pytest.mark.parametrize("seconds", [3e-6, 6e-5, 0.00099])
@pytest.mark.parametrize("sets", [1, 2, 6])
def test_short_launches_are_replayed_from_a_graph_of_whole_rounds(seconds, sets):
    plan = Plan.of(seconds, sets)
    assert plan.graph
    assert plan.lead_in
    assert plan.launches_per_batch % sets == 0
    assert plan.launches_per_batch * seconds >= timing.BATCH_SECONDS
    assert plan.batches_per_sample == timing.BATCHES_PER_SAMPLE


@pytest.mark.parametrize("seconds", [0.001, 0.003, 0.02, 0.1])
def test_enough_samples_of_long_launches_fit_below_the_time_cap(seconds):
    plan = Plan.of(seconds, 2)
    assert not plan.graph
    assert plan.lead_in == (plan.launches_per_batch * seconds < timing.LEAD_IN_BELOW_SECONDS)
    sample_seconds = plan.batches_per_sample * plan.launches_per_batch * seconds
    assert timing.ENOUGH_SAMPLES * sample_seconds <= timing.CAP_SECONDS


def test_a_sample_of_the_longest_launches_is_one_launch():
    assert Plan.of(5.0, 2) == Plan(1, 1, graph=False, lead_in=False)


@pytest.mark.case("2.1", "2.2", "2.7")
@pytest.mark.parametrize("seconds", [6e-5, 0.003, 0.3])
def test_a_sample_is_the_time_of_one_launch(seconds):
    sampler = prepared(Device(lambda i: seconds, mhz=1500))
    sample = sampler.sample()
    assert sample.seconds == pytest.approx(seconds)
    assert sample.cycles == pytest.approx(seconds * 1500e6)
    assert sample.reading.sm_mhz == 1980
    assert sampler.samples == [sample]


def test_a_graph_is_captured_anew_only_after_a_warm_up():
    device = Device(lambda i: 6e-5)
    captures, capture = [], device.capture
    device.capture = lambda work: captures.append(work) or capture(work)
    sampler = Sampler(device, device, device)
    sampler.settled = True
    sampler.prepare()
    assert len(captures) == 1
    sampler.settled = False
    sampler.prepare()
    assert len(captures) == 3


def test_a_sample_is_the_fastest_batch():
    """Launches that are disturbed, four batches of five, change nothing."""
    device = Device(lambda i: 0.002)
    sampler = prepared(device)
    first = len(device.launched()) + 1  # after the lead-in
    quiet = range(
        first + 3 * sampler.plan.launches_per_batch, first + 4 * sampler.plan.launches_per_batch
    )
    device.cost = lambda i: 0.002 if i in quiet else 0.003
    sample = sampler.sample()
    assert sample.seconds == pytest.approx(0.002)
    assert sample.cycles == pytest.approx(0.002 * 1980e6)


def test_a_sample_that_is_taken_in_turns_is_the_mean_of_its_launches():
    device = Device(lambda i: 0.002 if i % 4 < 2 else 0.003)
    sampler = TurnsSampler(device, device, device)
    sampler.prepare()
    assert (sampler.plan.launches_per_batch, sampler.plan.batches_per_sample) == (2, 2)
    for _ in range(4):
        sample = sampler.sample()
        assert sample.seconds == pytest.approx(0.0025)
        assert sample.cycles == pytest.approx(0.0025 * 1980e6)


@pytest.mark.parametrize("seconds", [3e-4, 0.0038, 0.022, 0.09, 0.3])
def test_turns_take_their_time_and_no_more(seconds):
    """Lead-ins included."""
    device = Device(lambda i: seconds)
    sampler = TurnsSampler(device, device, device)
    sampler.prepare()
    assert turns.MIN_ROUNDS <= sampler.rounds <= turns.MAX_ROUNDS
    start = device.clock
    for _ in range(sampler.rounds):
        sampler.sample()
    most = max(turns.ROUNDS_SECONDS, turns.MIN_ROUNDS * seconds)
    assert device.clock - start <= most + 1e-9


@pytest.mark.case("2.8")
@pytest.mark.parametrize("seconds", [6e-5, 0.003, 0.3])
def test_launches_rotate_through_the_sets(seconds):
    device = Device(lambda i: seconds)
    sampler = prepared(device)
    start = len(device.launched())
    sampler.sample()
    sampler.sample()
    timed = device.launched()[start:]
    assert all(later == (earlier + 1) % device.sets for earlier, later in pairwise(timed))


@pytest.mark.parametrize("seconds", [6e-5, 0.003, 0.3])
@pytest.mark.parametrize("kind", [Sampler, TurnsSampler])
def test_nothing_is_kept_of_a_sampler(kind, seconds):
    """Its matrices take gigabytes, which the next one needs before the garbage collector runs."""
    device = Device(lambda i: seconds)
    sampler = kind(device, device, device)
    sampler.prepare()
    sampler.sample()
    sampler.finish()
    left = weakref.ref(sampler)
    del sampler
    assert left() is None


def test_results_are_verified_before_and_after_and_poisoned_in_between():
    device = Device(lambda i: 0.003)
    sampler = prepared(device)
    assert device.history[:3] == ["poison", 0, "verify 1"]
    assert device.history[-1] == "poison"
    sampler.sample()
    sampler.finish()
    assert device.history[-1] == "verify 3"
    assert device.history.count("poison") == 2


def test_only_results_that_were_written_are_verified():
    device = Device(lambda i: 0.3, sets=7)
    sampler = prepared(device)
    sampler.sample()
    sampler.finish()
    assert device.history[-1] == "verify 1"


@pytest.mark.parametrize("verifications", [0, 1])
def test_a_wrong_result_is_an_error(verifications):
    device = Device(lambda i: 0.003)
    device.wrong_after = verifications
    sampler = Sampler(device, device, device)
    if verifications:
        sampler.prepare()
        sampler.sample()
    with pytest.raises(WrongResultError):
        sampler.finish() if verifications else sampler.prepare()


class TestWarmUp:
    @pytest.mark.case("2.6")
    def test_lasts_until_the_clocks_have_settled(self):
        """The first launches of a process are its fastest, by 6 %."""
        device = Device(lambda i: 0.001 * (1 - 0.06 * 0.95**i))
        sampler = prepared(device)
        assert sampler.settled
        assert sampler.sample().seconds == pytest.approx(0.001, rel=timing.SETTLED_WITHIN)

    def test_is_short_where_nothing_changes(self):
        device = Device(lambda i: 0.001)
        sampler = prepared(device)
        assert sampler.settled
        assert device.clock < 0.2

    def test_ends_where_the_clocks_never_settle(self):
        device = Device(lambda i: 0.3 * 1.01**i)
        sampler = prepared(device)
        assert not sampler.settled
        assert len(device.launched()) == 2  # the one that is verified, and the estimate

    @pytest.mark.case("2.6")
    def test_s_samples_are_not_among_the_samples(self):
        sampler = prepared(Device(lambda i: 0.001))
        assert sampler.samples == []
        assert sampler.spent_seconds == 0

    @pytest.mark.parametrize(("cold", "launches"), [(0.01, 10), (0.0001, 300)])
    def test_gives_the_speed_that_samples_are_planned_by(self, cold, launches):
        sampler = prepared(Device(lambda i: cold if i < launches else 0.00095))
        assert sampler.plan == Plan.of(0.00095, 3)


class TestStopping:
    def sampled(self, *costs, rounds):
        """Samplers of launches that take ``costs``, after ``rounds`` in turn."""
        samplers = []
        for cost in costs:
            device = Device(lambda i: 0.001)
            samplers.append(prepared(device))
            device.cost = cost
        for _ in range(rounds):
            for sampler in samplers:
                sampler.sample()
        return samplers

    @pytest.mark.parametrize(
        ("rounds", "reason"),
        [(timing.ENOUGH_SAMPLES - 1, None), (timing.ENOUGH_SAMPLES, "precision")],
    )
    def test_enough_samples_that_agree_are_precise(self, rounds, reason):
        samplers = self.sampled(lambda i: 0.001, lambda i: 0.001, rounds=rounds)
        assert reason_to_stop(samplers, 10.0) == reason

    def test_noise_takes_as_many_samples_as_make_their_mean_known(self):
        """By 0.2 %, which is three times what the mean may leave unknown: nine and one."""
        (sampler,) = self.sampled(lambda i: 0.001, rounds=0)
        reasons = []
        for i in range(10):
            sampler._workload.cost = lambda _, odd=i % 2: 0.001 * (1 + 0.004 * odd)
            sampler.sample()
            reasons.append(reason_to_stop([sampler], 10.0))
        assert reasons == [None] * 9 + ["precision"]
        assert low_end(sampler.samples) == pytest.approx(0.001)

    def test_another_workload_beside_it_starts_a_new_count(self):
        (sampler,) = self.sampled(lambda i: 0.001, rounds=timing.ENOUGH_SAMPLES)
        plan = sampler.plan
        sampler.restart()
        assert (sampler.samples, sampler.spent_seconds, sampler.plan) == ([], 0.0, plan)
        assert reason_to_stop([sampler], 0.0) is None

    def test_one_that_drifts_keeps_all_going(self):
        def drift(i):
            return 0.001 * 1.0001**i

        samplers = self.sampled(lambda i: 0.001, drift, rounds=timing.MAX_SAMPLES - 1)
        assert reason_to_stop(samplers, 10.0) is None
        for sampler in samplers:
            sampler.sample()
        assert reason_to_stop(samplers, 10.0) == "count"

    def test_the_time_cap_is_of_all_samples_together(self):
        (sampler,) = self.sampled(lambda i: 0.001, rounds=timing.ENOUGH_SAMPLES - 1)
        assert reason_to_stop([sampler], sampler.spent_seconds * 1.01) is None
        of_one = sampler.spent_seconds / len(sampler.samples)
        assert of_one == pytest.approx(
            0.001 * sampler.plan.launches_per_batch * sampler.plan.batches_per_sample
        )
        assert reason_to_stop([sampler], 4.99 * of_one) == "time"

    @pytest.mark.parametrize("seconds", [0.001, 5.0])
    def test_the_time_cap_spares_the_least_number_of_samples(self, seconds):
        samplers = self.sampled(lambda i: seconds, rounds=timing.MIN_SAMPLES - 1)
        assert reason_to_stop(samplers, 0.01) is None
        samplers[0].sample()
        assert reason_to_stop(samplers, 0.01) == "time"
        assert len(samplers[0].samples) == timing.MIN_SAMPLES


class TestCycles:
    @pytest.fixture(autouse=True)
    def cupy(self, monkeypatch):
        cupy = ModuleType("cupy")
        cupy.asnumpy = np.asarray
        monkeypatch.setitem(sys.modules, "cupy", cupy)

    def test_are_those_of_most_sms_wherever_the_blocks_landed(self):
        start = np.array([[0, 1000], [1, 5000], [2, 10], [3, 0]])
        end = np.array([[3, 303], [2, 310], [5, 7], [1, 5301]])
        assert clock.cycles_between(start, end) == 301

    def test_of_few_sms_are_an_error(self):
        start = np.array([[0, 1], [1, 1], [2, 1], [3, 1]])
        end = np.array([[0, 9], [4, 9], [5, 9], [6, 9]])
        with pytest.raises(clock.ClockError, match="only 1 SMs were read twice"):
            clock.cycles_between(start, end)

    @pytest.mark.parametrize("mhz", [0, 100, 2100])
    def test_that_do_not_fit_the_seconds_are_an_error(self, mhz):
        sampler = prepared(Device(lambda i: 0.001))
        sampler._stream.mhz = mhz
        with pytest.raises(clock.ClockError, match=rf"would be a clock of {mhz} MHz.*1980 MHz"):
            sampler.sample()

    @pytest.mark.case("2.5")
    def test_launches_that_take_no_time_are_an_error(self):
        device = Device(lambda i: 0.0)
        with pytest.raises(clock.ClockError, match="launches took 0 s by the GPU's events"):
            prepared(device)

    @pytest.mark.case("2.5")
    def test_a_batch_that_takes_no_time_is_an_error(self):
        device = Device(lambda i: 0.001)
        sampler = prepared(device)
        device.cost = lambda i: 0.0
        with pytest.raises(clock.ClockError, match="launches took 0 s"):
            sampler.sample()

    def test_of_a_short_batch_may_hold_a_reading(self, monkeypatch):
        monkeypatch.setattr(timing, "BATCH_SECONDS", 5e-5)
        sampler = prepared(Device(lambda i: 5e-5))
        sampler._stream.mhz = 2100
        assert sampler.sample().cycles == pytest.approx(5e-5 * 2100e6)

    def test_need_no_highest_clock(self):
        """Some GPUs do not report it."""
        device = Device(lambda i: 0.001, mhz=3000)
        device.max_sm_mhz = None
        assert prepared(device).sample().cycles == pytest.approx(3e6)


class Cuda(ModuleType):
    """CUDA whose every event and kernel takes one second, in the order that they are queued. Its
    clock is known up to the event that was waited for last."""

    def __init__(self):
        super().__init__("cupy")
        self.now = self.known = 0
        self.cuda = self
        self.int64 = np.int64
        self.empty = np.empty
        self.asnumpy = np.asarray

    def Device(self):  # noqa: N802
        self.attributes = {"MultiProcessorCount": 2}
        return self

    def RawModule(self, code):  # noqa: N802
        self.code = code
        return self

    def get_function(self, name):
        assert f"{name}(" in self.code

        def read_counters(grid, block, args):
            self.now += 1
            args[0][...] = [[sm, 100 * self.now] for sm in range(*grid)]

        return read_counters

    def Stream(self, non_blocking):  # noqa: N802
        return self

    def Event(self):  # noqa: N802
        cuda = self

        class Event:
            def record(self):
                cuda.now += 1
                self.time = cuda.now

            def synchronize(self):
                cuda.known = self.time

        return Event()

    def get_elapsed_time(self, start, end):
        assert start.time <= end.time <= self.known
        return 1000.0 * (end.time - start.time)


def test_reading_the_counters_is_not_in_the_seconds(monkeypatch):
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "cupy", cuda)
    stream = timing.CudaStream()
    start = stream.mark()
    cuda.now += 10
    end = stream.mark()
    elapsed = stream.elapsed(start, end)
    assert elapsed.seconds == 11  # the work, and the end's first event
    assert elapsed.cycles == 100 * 13  # its readings and events too
