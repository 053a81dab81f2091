"""The instrument's arithmetic: how launches are batched, sampled, rotated and verified."""

from itertools import pairwise

import pytest

from benchmarks import timing
from benchmarks.gpu import Reading
from benchmarks.timing import Plan, Sampler, WrongResultError


class Device:
    """A device with a clock of its own: stream, workload and monitor in one.

    Launch number i of its life takes ``cost(i)`` seconds.
    """

    def __init__(self, cost, sets=3):
        self.cost = cost
        self.sets = sets
        self.clock = 0.0
        self.captured = None
        self.history = []  # what was done with the operand sets, in order
        self.wrong_after = None  # verifications that pass

    def mark(self):
        return self.clock

    def seconds(self, start, end):
        return end - start

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
        self.clock += self.cost(len(self.launched()))
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


def sampler_of(device):
    return Sampler(device, device, device)


@pytest.mark.parametrize("seconds", [3e-6, 6e-5, 0.00099])
@pytest.mark.parametrize("sets", [1, 2, 6])
def test_short_launches_are_replayed_from_a_graph_of_whole_rounds(seconds, sets):
    plan = Plan.of(seconds, sets)
    assert plan.graph
    assert plan.lead_in
    assert plan.launches_per_batch % sets == 0
    assert plan.launches_per_batch * seconds >= timing.BATCH_SECONDS
    assert plan.samples == timing.SAMPLES
    assert plan.batches_per_sample == timing.BATCHES_PER_SAMPLE


@pytest.mark.parametrize("seconds", [0.001, 0.003, 0.02, 0.1, 0.27])
def test_long_launches_stay_below_the_time_cap(seconds):
    plan = Plan.of(seconds, 2)
    assert not plan.graph
    assert plan.lead_in == (plan.launches_per_batch * seconds < timing.LEAD_IN_BELOW_SECONDS)
    timed = plan.samples * plan.batches_per_sample * plan.launches_per_batch * seconds
    assert timed <= timing.CAP_SECONDS
    assert plan.samples >= timing.MIN_SAMPLES


def test_the_longest_launches_get_the_fewest_samples():
    assert Plan.of(5.0, 2) == Plan(1, 1, timing.MIN_SAMPLES, graph=False, lead_in=False)


@pytest.mark.parametrize("seconds", [6e-5, 0.003, 0.3])
def test_a_sample_is_the_time_of_one_launch(seconds):
    sampler = sampler_of(Device(lambda i: seconds))
    sampler.prepare()
    assert sampler.sample().seconds == pytest.approx(seconds)
    assert sampler.sample().reading.sm_mhz == 1980


def test_a_sample_is_the_fastest_batch():
    """Launches that are disturbed, four batches of five, change nothing."""
    device = Device(lambda i: 0.002)
    sampler = sampler_of(device)
    sampler.prepare()
    first = len(device.launched()) + sampler.plan.launches_per_batch  # after the lead-in
    quiet = range(
        first + 3 * sampler.plan.launches_per_batch, first + 4 * sampler.plan.launches_per_batch
    )
    device.cost = lambda i: 0.002 if i in quiet else 0.003
    assert sampler.sample().seconds == pytest.approx(0.002)


@pytest.mark.parametrize("seconds", [6e-5, 0.003, 0.3])
def test_launches_rotate_through_the_sets(seconds):
    device = Device(lambda i: seconds)
    sampler = sampler_of(device)
    sampler.prepare()
    start = len(device.launched())
    sampler.sample()
    sampler.sample()
    timed = device.launched()[start:]
    assert all(later == (earlier + 1) % device.sets for earlier, later in pairwise(timed))


def test_results_are_verified_before_and_after_and_poisoned_in_between():
    device = Device(lambda i: 0.003)
    sampler = sampler_of(device)
    sampler.prepare()
    assert device.history[:5] == ["poison", 0, 1, 2, "verify 3"]
    assert device.history[-1] == "poison"
    sampler.sample()
    sampler.finish()
    assert device.history[-1] == "verify 3"
    assert device.history.count("poison") == 2


def test_only_results_that_were_written_are_verified():
    device = Device(lambda i: 0.3, sets=7)
    sampler = sampler_of(device)
    sampler.prepare()
    sampler.sample()
    sampler.finish()
    assert device.history[-1] == "verify 1"


@pytest.mark.parametrize("verifications", [0, 1])
def test_a_wrong_result_is_an_error(verifications):
    device = Device(lambda i: 0.003)
    device.wrong_after = verifications
    sampler = sampler_of(device)
    if verifications:
        sampler.prepare()
        sampler.sample()
    with pytest.raises(WrongResultError):
        sampler.finish() if verifications else sampler.prepare()


def test_the_device_is_warm_before_the_first_sample():
    device = Device(lambda i: 0.01 if i < 5 else 0.001)
    sampler = sampler_of(device)
    sampler.prepare()
    assert device.clock >= timing.WARM_UP_SECONDS
    assert sampler.plan.launches_per_batch == 4  # planned by the warm device's speed
