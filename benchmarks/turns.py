"""Samples taken by several processes that take turns on one GPU.

Each process holds one build of the package. For one version and problem all of them load the kernel
and verify its first result at once, as nothing of that is timed, and warm the device up one by one.
Then, round after round, each takes a sample, in an order that turns round every time (ABBA), so
that none always comes first. The GPU goes from one to the next within milliseconds, at the same
clock and temperature. Rounds go on until ``verdict.is_precise`` says of every pair of processes
that it has enough of them, or their time is up.

A sample is here the mean of its batches, not the fastest: what disturbs one process soon disturbs
the next, rounds that stand out are left out, and where the time of a kernel varies from launch to
launch, as v3's does, their mean is better known than their low end.

The process can also slow its own kernel down: after each timed batch it spins on the device for a
share of the batch's cycles. That is how ``calibrate`` plants slowdowns of a known size.
"""

import json
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import permutations
from pathlib import Path
from statistics import mean
from types import TracebackType
from typing import Any, get_args

from . import child, environment, gpu, timing
from .builds import Build
from .checkout import LADDER
from .clock import ClockError
from .cublas import Cublas
from .measure import by_version
from .problems import PROBLEMS, Problem, parse
from .products import PLACES, Layout, Operands, Product, random_values
from .timing import CudaStream, Elapsed, Sampler, WrongResultError
from .verdict import MIN_ROUNDS, Samples, is_precise

MAX_ROUNDS = 28
ROUNDS_SECONDS = 0.5  # per process, and then no more, but MIN_ROUNDS of launches however long
SAMPLE_SECONDS = 0.012  # as many batches as come next to it, at least one
CHECKS = (Problem(512, 512, 64), Problem(4096, 4096, 64))  # of one block, and of several
CAN_BE_SLOWED = "can be slowed"
START_TIMEOUT_SECONDS = 300.0  # many may start, and compile, on few cores
ANSWER_TIMEOUT_SECONDS = 60.0

# In place of timing's. The processes of a round share clocks that have not settled, and what the
# host adds to a launch without a lead-in, 0.15 % of 20 ms: a lead-in would halve the rounds there.
ESTIMATE_SECONDS = 0.005
WARM_UP_CAP_SECONDS = 0.03
LEAD_IN_BELOW_SECONDS = 0.02


class SamplingError(RuntimeError):
    """A sampling process ended, or gave no answer."""


@dataclass(frozen=True)
class Failure:
    """Why a process has no samples: a result that is wrong, or anything else."""

    reason: str
    wrong: bool = False


@dataclass
class Series:
    """What one process has sampled of one version and problem at one planted share."""

    seconds: list[float] = field(default_factory=list)
    cycles: list[float] = field(default_factory=list)
    readings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def samples(self) -> Samples:
        return Samples(self.seconds, self.cycles)


Outcome = dict[float, Series] | Failure
"""Planted share to samples."""


class SamplingProcess:
    """One of the processes, which is started again after it has died. Use within ``with``.

    ``planted`` are the shares by which it can slow its kernels down. With None it has no kernel to
    do so; with any other value, an empty one too, all its batches carry that kernel's own cost.
    """

    def __init__(self, build: Build, planted: Sequence[float] | None = None) -> None:
        self.build = build
        self.planted = planted
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "SamplingProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def start(self) -> None:
        """Start the process, unless it runs. ``wait_until_ready`` waits for it."""
        if self._process is not None:
            return
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            self.build.command("turns", [] if self.planted is None else [CAN_BE_SLOWED]),
            env=self.build.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.environment: dict[str, Any] = {}

    def wait_until_ready(self) -> None:
        """Raises SamplingError if the process cannot sample anything."""
        if self.environment:
            return
        try:
            self.environment = self.answer(START_TIMEOUT_SECONDS)
        except SamplingError as error:
            raise SamplingError(f"{self.build.commit[:8]} cannot be sampled: {error}") from error

    def tell(self, command: str, **arguments: Any) -> None:
        """Send a command; ``answer`` waits for what comes of it."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the answer that is not there says why
            print(json.dumps([command, arguments]), file=self._process.stdin, flush=True)

    def answer(self, timeout: float) -> child.Record:
        """What the process answers; raises SamplingError if it does not."""
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], timeout)
        line = self._process.stdout.readline() if readable else ""
        if line.endswith("\n"):
            ((_, record),) = json.loads(line).items()
            return dict(record)
        errors = self._errors
        status = self._end()
        errors.seek(0)
        last = errors.read().strip().splitlines()[-1:]
        if not readable:
            raise SamplingError(f"no answer within {timeout:.0f} s")
        raise SamplingError("; ".join([f"the process ended with status {status}", *last]))

    def _end(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()  # which is the end of its work
        try:
            return process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def get_ready(processes: Sequence[SamplingProcess]) -> None:
    """Start the processes that do not run; raises SamplingError if one cannot be."""
    for process in processes:
        process.start()
    for process in processes:
        process.wait_until_ready()


def take_turns(
    processes: Sequence[SamplingProcess],
    version: str,
    problem: str,
    benchmarks: int,
    *,
    planted: bool = False,
) -> list[Outcome]:
    """Sample one version and problem, of so many ``benchmarks``, in all processes, and if
    ``planted`` at each process's shares of slowdown too: what each has sampled, or why nothing.

    Raises GpuBusyError if another process computes on the GPU, and SamplingError if a process
    cannot be started.
    """
    failures: dict[int, Failure] = {}
    taken: list[dict[float, Series]] = [
        {share: Series() for share in (0.0, *((planted and process.planted) or ()))}
        for process in processes
    ]

    def hear(i: int) -> child.Record:
        """What a process answers; ``{"error": why}`` if it does not."""
        try:
            return processes[i].answer(ANSWER_TIMEOUT_SECONDS)
        except SamplingError as error:
            return {"error": str(error)}

    def judged(i: int, answer: child.Record) -> child.Record:
        """The answer of a process; empty if it has failed, which is noted."""
        if "busy" in answer:
            raise gpu.GpuBusyError(answer["busy"])
        if reason := answer.get("wrong") or answer.get("error"):
            failures[i] = Failure(reason, wrong="wrong" in answer)
            return {}
        return answer

    def ask(i: int, command: str, **arguments: Any) -> child.Record:
        processes[i].tell(command, **arguments)
        return judged(i, hear(i))

    def working() -> list[int]:
        """The processes that have not failed."""
        return [i for i in range(len(processes)) if i not in failures]

    get_ready(processes)
    for process in processes:
        process.tell("load", version=version, problem=problem, processes=len(processes))
    # All are heard before one ends this: what is left in a pipe would be the next command's answer.
    for i, answer in enumerate([hear(i) for i in range(len(processes))]):
        judged(i, answer)
    max_rounds = 0
    for i in working():
        max_rounds = max(max_rounds, ask(i, "warm_up").get("rounds", 0))
    imprecise = [
        (base, head, share)
        for base, head in permutations(working(), 2)
        for share in taken[head]
        if share or base < head
    ]
    rounds = 0
    while imprecise and rounds < max_rounds:
        for i in working()[:: -1 if rounds % 2 else 1]:
            for share, series in taken[i].items():
                if not (sample := ask(i, "sample", share=share)):
                    break
                series.seconds.append(sample["seconds"])
                series.cycles.append(sample["cycles"])
                series.readings.append(sample["reading"])
        rounds += 1
        imprecise = [
            (base, head, share)
            for base, head, share in imprecise
            if not failures.keys() & {base, head}
            and not is_precise(taken[base][0.0].samples, taken[head][share].samples, benchmarks)
        ]
    for i in working():
        ask(i, "finish", processes=len(processes))
    return [failures.get(i) or taken[i] for i in range(len(processes))]


class Spin:
    """A kernel that does nothing for as many cycles as it is told."""

    def __init__(self) -> None:
        import cupy

        code = Path(__file__).with_name("spin.cu").read_text()
        self._kernel = cupy.RawModule(code=code).get_function("spin")
        self._cycles = cupy.empty(1, cupy.int64)
        self.set_cycles(0)

    def set_cycles(self, cycles: int) -> None:
        """Applies to what is queued from now on, replayed graphs included."""
        self._cycles.fill(cycles)

    def launch(self) -> None:
        self._kernel((1,), (1,), (self._cycles,))


class TurnsSampler(Sampler):
    """A sampler of short samples, which can be slowed down."""

    rounds: int

    def __init__(self, workload: Product, stream: CudaStream, monitor: gpu.Monitor) -> None:
        super().__init__(workload, stream, monitor)
        self.spin: Spin | None = None
        self._cycles_per_batch = 0.0

    def sample_slowed(self, share: float) -> timing.Sample:
        """A sample in which every batch takes longer by ``share``, of what the last sample took
        that was not slowed."""
        if self.spin is not None:
            self.spin.set_cycles(round(share * self._cycles_per_batch))
        sample = self.sample()
        if not share:
            self._cycles_per_batch = sample.cycles * self.plan.launches_per_batch
        return sample

    def _plan(self, seconds: float) -> None:
        super()._plan(seconds)
        batch_seconds = seconds * self.plan.launches_per_batch
        batches = max(1, round(SAMPLE_SECONDS / batch_seconds))
        self.plan = replace(self.plan, batches_per_sample=batches)
        lead_in_seconds = self.plan.lead_in * (batch_seconds if self.plan.graph else seconds)
        affordable = int(ROUNDS_SECONDS / (batches * batch_seconds + lead_in_seconds))
        self.rounds = min(MAX_ROUNDS, max(MIN_ROUNDS, affordable))

    def _result(self, batches: Sequence[Elapsed]) -> Elapsed:
        return Elapsed(
            mean(batch.seconds for batch in batches), mean(batch.cycles for batch in batches)
        )

    def _batch(self) -> None:
        super()._batch()
        if self.spin is not None:
            self.spin.launch()


class _Answers:
    """What the child answers to each command: ``{"wrong": why}`` for a wrong result, ``{"busy":
    why}`` if somebody else computes on the GPU, ``{"error": why}`` for what else it survives."""

    def __init__(
        self, stream: CudaStream, monitor: gpu.Monitor, cublas: Cublas, spin: Spin | None
    ) -> None:
        import cupy

        self._stream = stream
        self._monitor = monitor
        self._spin = spin
        self._free_memory = cupy.get_default_memory_pool().free_all_blocks
        self._values = random_values(max(map(Operands.floats, PROBLEMS.values())))
        self._sampler: TurnsSampler | None = None

        self._compile_check(cublas)

    def _compile_check(self, cublas: Cublas) -> None:
        """Compile the check of results before the turns, as it takes many seconds: for C that is
        checked at once and block by block, and B in either order."""
        for problem in CHECKS:
            for layout in get_args(Layout):
                operands = Operands(problem, layout, self._values, warm=True)
                right = Product(cublas.multiply, operands)
                right.launch(0)
                right.verify(1)

    def load(self, version: str, problem: str, processes: int) -> child.Record:
        self._monitor.require_alone(own_processes=processes)
        self._sampler = None
        self._free_memory()  # of its matrices, which those of other sizes cannot use
        if self._spin is not None:
            self._spin.set_cycles(0)
        operands = Operands(parse(problem), LADDER[version].b_layout, self._values, PLACES)
        product = Product(by_version(version), operands)
        self._sampler = TurnsSampler(product, self._stream, self._monitor)
        self._sampler.spin = self._spin
        self._sampler.verify_first()
        return {"loaded": True}

    def warm_up(self) -> child.Record:
        assert self._sampler is not None
        self._sampler.warm_up()
        return {"rounds": self._sampler.rounds}

    def sample(self, share: float) -> child.Record:
        assert self._sampler is not None
        return asdict(self._sampler.sample_slowed(share))

    def finish(self, processes: int) -> child.Record:
        assert self._sampler is not None
        self._sampler.finish()
        self._monitor.require_alone(own_processes=processes)
        return {"finished": True}


def answer(
    args: Sequence[str], keys: Sequence[str], emit: Callable[[str, child.Record], None]
) -> None:
    """What the child does: it answers commands from its standard input until that ends."""
    import sgemm

    timing.ESTIMATE_SECONDS = ESTIMATE_SECONDS
    timing.WARM_UP_CAP_SECONDS = WARM_UP_CAP_SECONDS
    timing.LEAD_IN_BELOW_SECONDS = LEAD_IN_BELOW_SECONDS
    device = gpu.find()
    assert device is not None, "the parent has found a GPU"
    monitor = gpu.Monitor(device)
    with CudaStream() as stream:
        cublas = Cublas(stream.stream)
        answers = _Answers(stream, monitor, cublas, Spin() if CAN_BE_SLOWED in args else None)
        emit("ready", environment.describe(device, monitor, cublas))
        for line in sys.stdin:
            command, arguments = json.loads(line)
            record: Mapping[str, Any]
            try:
                record = getattr(answers, command)(**arguments)
            except WrongResultError as error:
                record = {"wrong": str(error)}
            except gpu.GpuBusyError as error:
                record = {"busy": str(error)}
            except (sgemm.SgemmError, ClockError) as error:
                record = {"error": str(error)}
            emit(command, dict(record))
