"""Times a kernel on the device's own clocks, and proves that what was timed was right.

Launches are queued far ahead of the device, and marks between batches of them are timed by the
device, so neither Python nor the launches' own cost is in a figure: launches shorter than a
millisecond are captured in a CUDA graph that is replayed. A sample is the fastest of a few batches,
because what disturbs a launch only ever slows it down: such low ends vary ten times less from
process to process than medians do. Samples are taken until their mean is known, or a time cap. No
sample that was taken after the warm-up is ever dropped.

A mark is an event, a reading of the SMs' cycle counters, and another event. Seconds are counted
from the second event of one mark to the first of the next, so the reading is not in them; cycles
are counted from reading to reading, so one reading, a few microseconds of a batch of milliseconds,
is in them.

Each launch takes the next of several sets of operands, so many that the others' bytes fill the L2
cache: no launch finds its own operands there. Further sets average out where in memory matrices
lie, which is a matter of the process and moves the time of some kernels by 0.2 %.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from math import ceil, inf, sqrt
from statistics import mean, stdev
from typing import Any, Protocol

from .clock import Clock, ClockError, cycles_between
from .gpu import Monitor, Reading

BATCH_SECONDS = 0.004
BATCHES_PER_SAMPLE = 5
GRAPH_BELOW_SECONDS = 0.001  # launches from Python cannot keep the device busy with shorter ones
LEAD_IN_BELOW_SECONDS = 0.05  # before longer batches, the device's start-up does not count

ESTIMATE_SECONDS = 0.02  # of launches from which their time is first estimated

SETTLED_SAMPLES = 4
SETTLED_WITHIN = 0.002
WARM_UP_CAP_SECONDS = 0.2

MIN_SAMPLES = 3  # even where they take longer than the cap
ENOUGH_SAMPLES = 6  # where they are precise
MAX_SAMPLES = 20
PRECISION = 0.0007  # the standard error of their mean
CAP_SECONDS = 0.8  # of timed work

BLOCK_SECONDS = 0.3  # of timed work, of one sampler before the next one's turn
BLOCKS = 2  # of each, where samplers take turns in blocks

_CLOCK_TOLERANCE = 1.05
_READING_SECONDS = 1e-5  # of cycles that are not in the seconds: up to 6.3 µs on an H200
_LOWEST_CLOCK = 0.1  # of the highest: no GPU at work runs slower


class WrongResultError(RuntimeError):
    """A kernel computed something else than its product: it has no speed."""


@dataclass(frozen=True)
class Elapsed:
    """What passed on the device between two marks."""

    seconds: float
    cycles: float


class Stream(Protocol):
    """A queue of the device's work."""

    def mark(self) -> Any:
        """Queue a mark."""

    def elapsed(self, start: Any, end: Any) -> Elapsed:
        """Wait for the mark ``end``; what passed on the device from ``start`` to it."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Turn what ``work`` queues into something that queues all of it at once."""


@dataclass(frozen=True)
class Mark:
    """A moment in a CUDA stream: the work before it ends at ``arrival``, the work after it starts
    at ``departure``."""

    arrival: Any
    counters: Any
    departure: Any


class CudaStream:
    """A CUDA stream, current within ``with``."""

    def __init__(self) -> None:
        import cupy

        self._cuda = cupy.cuda
        self._clock = Clock()
        self.stream = cupy.cuda.Stream(non_blocking=True)  # the default stream cannot be captured

    def __enter__(self) -> "CudaStream":
        self.stream.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stream.__exit__(*exception)

    def mark(self) -> Mark:
        return Mark(self._event(), self._clock.read(), self._event())

    def elapsed(self, start: Mark, end: Mark) -> Elapsed:
        end.departure.synchronize()
        milliseconds = float(self._cuda.get_elapsed_time(start.departure, end.arrival))
        return Elapsed(milliseconds / 1000, cycles_between(start.counters, end.counters))

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.stream.begin_capture()
        try:
            work()
        finally:
            graph = self.stream.end_capture()
        return lambda: graph.launch(self.stream)

    def _event(self) -> Any:
        event = self._cuda.Event()
        event.record()
        return event


@dataclass(frozen=True)
class Plan:
    """How a sample is taken.

    ``graph`` says whether batches are replayed from a CUDA graph, ``lead_in`` whether work that is
    not timed, a launch or a graph of them, goes before the batches, so that the device is busy when
    the first mark passes.
    """

    launches_per_batch: int
    batches_per_sample: int
    graph: bool
    lead_in: bool

    @classmethod
    def of(cls, seconds: float, sets: int) -> "Plan":
        """The plan for a launch that takes about ``seconds`` and rotates through ``sets``."""
        graph = seconds < GRAPH_BELOW_SECONDS
        launches = ceil(BATCH_SECONDS / seconds)
        if graph:
            launches = ceil(launches / sets) * sets  # a graph holds whole rounds of the sets
        batch_seconds = launches * seconds
        affordable = int(CAP_SECONDS / batch_seconds)
        batches = min(BATCHES_PER_SAMPLE, max(1, affordable // ENOUGH_SAMPLES))
        return cls(launches, batches, graph, batch_seconds < LEAD_IN_BELOW_SECONDS)


@dataclass(frozen=True)
class Sample:
    """Seconds and SM cycles per launch, and the GPU's state while they passed."""

    seconds: float
    cycles: float
    reading: Reading


class Workload(Protocol):
    """What is timed: launches that rotate through ``sets`` sets of operands."""

    sets: int

    def launch(self, i: int) -> None:
        """Queue one launch on set ``i``."""

    def poison(self) -> None:
        """Spoil all outputs."""

    def verify(self, launched: int) -> None:
        """Raise WrongResultError unless the outputs of the first ``launched`` sets are right."""


class Sampler:
    """Samples a workload: ``prepare``, any number of ``sample``, ``finish``.

    ``samples`` are all that were taken since ``prepare`` or ``restart``, and ``spent_seconds`` the
    device's time that they took. ``settled`` says whether the clocks had settled before.
    """

    def __init__(self, workload: Workload, stream: Stream, monitor: Monitor) -> None:
        self._workload = workload
        self._stream = stream
        self._monitor = monitor
        self.samples: list[Sample] = []
        self.spent_seconds = 0.0
        self.settled = False

    def prepare(self) -> None:
        """Verify the kernel's first result and warm the device up with it."""
        self.verify_first()
        self.warm_up()

    def verify_first(self) -> None:
        """Verify the kernel's first result; nothing is timed."""
        self._workload.poison()
        self._workload.launch(0)
        self._workload.verify(1)

    def warm_up(self) -> None:
        """Plan samples of the kernel, and warm the device up with it.

        The first launches of a process are its fastest, until power and clocks have settled:
        samples are thrown away until the last SETTLED_SAMPLES of them agree within SETTLED_WITHIN,
        or WARM_UP_CAP_SECONDS have passed.
        """
        seconds, spent = self._estimate()
        self._plan(seconds)
        while not self.settled and spent + self.spent_seconds < WARM_UP_CAP_SECONDS:
            self.sample()
            last = [sample.seconds for sample in self.samples[-SETTLED_SAMPLES:]]
            self.settled = len(last) == SETTLED_SAMPLES and _agree(last, SETTLED_WITHIN)
        if self.samples:
            self._plan(self.samples[-1].seconds)  # by the warm device's
        self._workload.poison()

    def restart(self) -> None:
        """Have no samples, for another workload that is sampled in turn with this one."""
        self.samples = []
        self.spent_seconds = 0.0

    def sample(self) -> Sample:
        """Take one sample of a few batches.

        Raises ClockError if it took no time, or its cycles do not fit its seconds.
        """
        if self.plan.lead_in:
            self._queue_lead_in()
        marks = [self._stream.mark()]
        for _ in range(self.plan.batches_per_sample):
            self._queue_batch()
            marks.append(self._stream.mark())
        reading = self._monitor.read()  # the device is at work
        batches = [self._stream.elapsed(start, end) for start, end in pairwise(marks)]
        result = self._result(batches)
        self._require_possible_clock(result)
        launches = self.plan.launches_per_batch
        sample = Sample(result.seconds / launches, result.cycles / launches, reading)
        self.samples.append(sample)
        self.spent_seconds += sum(batch.seconds for batch in batches)
        return sample

    def _result(self, batches: Sequence[Elapsed]) -> Elapsed:
        """What counts of a sample's batches: the fastest."""
        return min(batches, key=lambda batch: batch.seconds)

    def finish(self) -> None:
        """Verify what the timed launches themselves have written."""
        self._workload.verify(min(self._workload.sets, next(self._rotation)))

    def _estimate(self) -> tuple[float, float]:
        """The seconds that a launch takes about, launches from Python included, and those that
        were spent on it."""
        launches, spent = 1, 0.0
        while True:
            start = self._stream.mark()
            for i in range(launches):
                self._workload.launch(i % self._workload.sets)
            seconds = self._stream.elapsed(start, self._stream.mark()).seconds
            _require_some_time(seconds)
            spent += seconds
            if seconds >= ESTIMATE_SECONDS:
                return seconds / launches, spent
            launches *= 2

    def _plan(self, seconds: float) -> None:
        """Plan samples of a launch that takes about ``seconds``, and start with none."""
        self.plan = Plan.of(seconds, self._workload.sets)
        self.restart()
        self._rotation = count()
        # No method of its own, which would be a reference to itself: the workload's memory must be
        # free as soon as the sampler is.
        self._replay = self._stream.capture(self._batch) if self.plan.graph else None

    def _queue_batch(self) -> None:
        if self._replay is None:
            self._batch()
        else:
            self._replay()

    def _queue_lead_in(self) -> None:
        if self._replay is None:
            self._next_launch()
        else:
            self._replay()

    def _batch(self) -> None:
        for _ in range(self.plan.launches_per_batch):
            self._next_launch()

    def _next_launch(self) -> None:
        self._workload.launch(next(self._rotation) % self._workload.sets)

    def _require_possible_clock(self, elapsed: Elapsed) -> None:
        _require_some_time(elapsed.seconds)
        mhz = elapsed.cycles / elapsed.seconds / 1e6
        highest = self._monitor.max_sm_mhz or inf
        lowest = _LOWEST_CLOCK * (self._monitor.max_sm_mhz or 0)
        possible = _CLOCK_TOLERANCE * highest * (1 + _READING_SECONDS / elapsed.seconds)
        if not lowest < mhz <= possible:
            raise ClockError(
                f"{elapsed.cycles:.0f} SM cycles in {elapsed.seconds:.6f} s would be a clock of "
                f"{mhz:.0f} MHz, and this GPU's highest is {highest} MHz"
            )


def sample_blocks(samplers: Sequence[Sampler], turn: int) -> None:
    """Let each sampler take the samples of a block, every other turn in reverse."""
    for sampler in samplers[:: -1 if turn % 2 else 1]:
        end = sampler.spent_seconds + BLOCK_SECONDS
        while sampler.spent_seconds < end:
            sampler.sample()


def low_end(samples: Sequence[Sample]) -> float:
    """The seconds of the fastest sample: where the samples pile up when nothing disturbs them."""
    return min(sample.seconds for sample in samples)


def reason_to_stop(samplers: Sequence[Sampler], cap_seconds: float) -> str | None:
    """Why samplers that sample in turn have enough samples; None if they have not.

    - "precision": ENOUGH_SAMPLES each, and the means of all are known within PRECISION;
    - "time": the device has spent ``cap_seconds`` on all of them, with MIN_SAMPLES each;
    - "count": MAX_SAMPLES each.
    """
    taken = min(len(sampler.samples) for sampler in samplers)
    if taken >= ENOUGH_SAMPLES and all(map(_is_precise, samplers)):
        return "precision"
    if taken >= MIN_SAMPLES and sum(s.spent_seconds for s in samplers) >= cap_seconds:
        return "time"
    return "count" if taken >= MAX_SAMPLES else None


def _require_some_time(seconds: float) -> None:
    if seconds <= 0:
        raise ClockError(f"launches took {seconds:g} s by the GPU's events")


def _is_precise(sampler: Sampler) -> bool:
    seconds = [sample.seconds for sample in sampler.samples]
    return stdev(seconds) <= PRECISION * mean(seconds) * sqrt(len(seconds))


def _agree(seconds: Sequence[float], within: float) -> bool:
    return max(seconds) <= min(seconds) * (1 + within)
