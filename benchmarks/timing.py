"""Times a kernel on the device's own clock, and proves that what was timed was right.

Launches are queued far ahead of the device, and marks (CUDA events) between batches of them are
timed by the device, so neither Python nor the launches' own cost is in a figure: launches shorter
than a millisecond are captured in a CUDA graph that is replayed. A sample is the fastest of a few
batches, because what disturbs a launch only ever slows it down: such low ends vary ten times less
from process to process than medians do.

Each launch takes the next of several sets of operands, so many that the others' bytes fill the L2
cache: no launch finds its own operands there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, pairwise
from math import ceil
from typing import Any, Protocol

from .gpu import Monitor, Reading

WARM_UP_SECONDS = 0.25
BATCH_SECONDS = 0.004
BATCHES_PER_SAMPLE = 5
SAMPLES = 10
MIN_SAMPLES = 3
CAP_SECONDS = 1.0  # of timed work, where MIN_SAMPLES fit into it
GRAPH_BELOW_SECONDS = 0.001  # launches from Python cannot keep the device busy with shorter ones
LEAD_IN_BELOW_SECONDS = 0.05  # before longer batches, the device's start-up does not count


class WrongResultError(RuntimeError):
    """A kernel computed something else than its product: it has no speed."""


class Stream(Protocol):
    """A queue of the device's work."""

    def mark(self) -> Any:
        """Queue a mark."""

    def seconds(self, start: Any, end: Any) -> float:
        """Wait for the mark ``end``; the time on the device from ``start`` to it."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Turn what ``work`` queues into something that queues all of it at once."""


class CudaStream:
    """A CUDA stream, current within ``with``."""

    def __init__(self) -> None:
        import cupy

        self._cuda = cupy.cuda
        self.stream = cupy.cuda.Stream(non_blocking=True)  # the default stream cannot be captured

    def __enter__(self) -> "CudaStream":
        self.stream.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stream.__exit__(*exception)

    def mark(self) -> Any:
        event = self._cuda.Event()
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(self._cuda.get_elapsed_time(start, end)) / 1000

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.stream.begin_capture()
        try:
            work()
        finally:
            graph = self.stream.end_capture()
        return lambda: graph.launch(self.stream)


@dataclass(frozen=True)
class Plan:
    """How a launch is sampled.

    ``graph`` says whether batches are replayed from a CUDA graph, ``lead_in`` whether a batch that
    is not timed goes before those that are, so that the device is busy when the first mark passes.
    """

    launches_per_batch: int
    batches_per_sample: int
    samples: int
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
        batches = min(BATCHES_PER_SAMPLE, max(1, affordable // SAMPLES))
        samples = min(SAMPLES, max(MIN_SAMPLES, affordable // batches))
        return cls(launches, batches, samples, graph, batch_seconds < LEAD_IN_BELOW_SECONDS)


@dataclass(frozen=True)
class Sample:
    """Seconds per launch, and the GPU's state while they passed."""

    seconds: float
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
    """Samples a workload: ``prepare``, any number of ``sample``, ``finish``."""

    def __init__(self, workload: Workload, stream: Stream, monitor: Monitor) -> None:
        self._workload = workload
        self._stream = stream
        self._monitor = monitor

    def prepare(self) -> None:
        """Verify the kernel, warm the device up with it and plan the samples."""
        workload = self._workload
        workload.poison()
        for i in range(workload.sets):
            workload.launch(i)
        workload.verify(workload.sets)

        self.plan = Plan.of(self._warm_up(), workload.sets)
        self._rotation = count()
        self._queue_batch = self._batch
        if self.plan.graph:
            self._queue_batch = self._stream.capture(self._batch)
        workload.poison()

    def sample(self) -> Sample:
        """Take one sample: the fastest of a few batches."""
        if self.plan.lead_in:
            self._queue_batch()
        marks = [self._stream.mark()]
        for _ in range(self.plan.batches_per_sample):
            self._queue_batch()
            marks.append(self._stream.mark())
        reading = self._monitor.read()  # the device is at work
        fastest = min(self._stream.seconds(start, end) for start, end in pairwise(marks))
        return Sample(fastest / self.plan.launches_per_batch, reading)

    def finish(self) -> None:
        """Verify what the timed launches themselves have written."""
        self._workload.verify(min(self._workload.sets, next(self._rotation)))

    def _batch(self) -> None:
        for _ in range(self.plan.launches_per_batch):
            self._workload.launch(next(self._rotation) % self._workload.sets)

    def _warm_up(self) -> float:
        """Keep the device busy for a while; the seconds that a launch takes."""
        launches, spent = 1, 0.0
        while spent < WARM_UP_SECONDS:
            start = self._stream.mark()
            for i in range(launches):
                self._workload.launch(i % self._workload.sets)
            seconds = self._stream.seconds(start, self._stream.mark())
            spent += seconds
            seconds_per_launch = seconds / launches
            launches = min(2 * launches, ceil(WARM_UP_SECONDS / seconds_per_launch))
        return seconds_per_launch
