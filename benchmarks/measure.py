"""Measures every version on a GPU, in one child process (see ``child``), so that one measurement
serves every benchmark and CUDA starts once.

What versions are compared with is measured in the same process: the FFMA peak before them, and
cuBLAS, on each problem, in turn with each version.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from . import child, compile_ahead, environment, gpu
from .checkout import LADDER
from .cublas import Cublas
from .empty_kernel import EmptyKernel
from .ffma_peak import FfmaPeak
from .problems import PROBLEMS, Problem
from .products import PLACES, Multiply, Operands, Product, random_values
from .timing import CudaStream, Sampler, Workload, WrongResultError, low_end, reason_to_stop

CUBLAS = "cublas"
SUBJECTS = (*LADDER, CUBLAS)
"""Everything that is measured, by name."""

ENVIRONMENT = "environment"
TIMEOUT_SECONDS = 900.0
CAP_SECONDS = 0.6  # of timed work, of one version with cuBLAS beside it


def run() -> dict[str, dict[str, child.Record]]:
    """Subject and problem to what ``measure`` returns, ``{"error": why}`` or ``{"skip": why}``; and
    ``ENVIRONMENT`` to the environment, where the child came that far."""
    device = gpu.find()
    assert device is not None, "the caller has found a GPU"
    compile_ahead.run(device)
    keys = [_key(subject, problem) for problem in PROBLEMS for subject in SUBJECTS]
    records = child.collect("measure", [], keys, TIMEOUT_SECONDS)
    measurements = {
        subject: {problem: records[_key(subject, problem)] for problem in PROBLEMS}
        for subject in SUBJECTS
    }
    return measurements | {ENVIRONMENT: records.get(ENVIRONMENT, {})}


def _key(subject: str, problem: str) -> str:
    return f"{subject} {problem}"


def answer(
    args: Sequence[str], keys: Sequence[str], emit: Callable[[str, child.Record], None]
) -> None:
    """What the child does: measure the subjects and problems that ``keys`` name."""
    device = gpu.find()
    assert device is not None, "the parent has found a GPU"
    monitor = gpu.Monitor(device)
    monitor.require_alone(own_processes=0)
    with CudaStream() as stream:
        cublas = Cublas(stream.stream)
        peak_gflops = measure_peak(stream, monitor)
        surroundings = environment.describe(device, monitor, cublas)
        surroundings |= {
            "ffma_peak_gflops": peak_gflops,
            "empty_kernel_seconds": measure_empty_kernel(stream, monitor),
        }
        emit(ENVIRONMENT, surroundings)
        selected = [(PROBLEMS[name], subject) for subject, name in (k.split(" ", 1) for k in keys)]
        values = random_values(max(Operands.floats(problem) for problem, _ in selected))
        bench = _Bench(device, stream, monitor, cublas, peak_gflops, values)
        for problem, group in groupby(selected, lambda pair: pair[0]):
            for subject, record in bench.measure_all(problem, [subject for _, subject in group]):
                monitor.require_alone(own_processes=1)
                emit(_key(subject, problem.name), record)


def by_version(version: Any) -> Multiply:
    """The product by one version of the installed package."""
    import sgemm

    return lambda a, b, out: sgemm.matmul(a, b, out=out, version=version)


def measure_peak(stream: CudaStream, monitor: gpu.Monitor) -> float:
    """The GFLOPS of nothing but multiply-adds, at the low end of the samples' seconds."""
    peak = FfmaPeak()
    return float(peak.flops) / _seconds(peak, stream, monitor) / 1e9


def measure_empty_kernel(stream: CudaStream, monitor: gpu.Monitor) -> float:
    """The seconds of a launch that does nothing, at their low end."""
    return _seconds(EmptyKernel(), stream, monitor)


def _seconds(workload: Workload, stream: CudaStream, monitor: gpu.Monitor) -> float:
    sampler = Sampler(workload, stream, monitor)
    sampler.prepare()
    _sample([sampler])
    return low_end(sampler.samples)


@dataclass(frozen=True)
class _Bench:
    """What all measurements of one process share."""

    device: gpu.Gpu
    stream: CudaStream
    monitor: gpu.Monitor
    cublas: Cublas
    peak_gflops: float
    values: Any

    def measure_all(
        self, problem: Problem, subjects: Sequence[str]
    ) -> Iterator[tuple[str, child.Record]]:
        """Measure the subjects on a problem, in that order."""
        operands = Operands(problem, "row", self.values, PLACES)
        product = Product(self.cublas.multiply, operands, label="cuBLAS is ")
        reference = Sampler(product, self.stream, self.monitor)
        wrong = ""
        try:
            reference.prepare()
        except WrongResultError as error:
            wrong = str(error)
        for subject in subjects:
            if reason := _reason_to_skip(subject, self.device):
                yield subject, {"skip": reason}
            elif wrong:
                yield subject, {"error": wrong}
            else:
                start = time.monotonic()
                try:
                    record = self._measure(subject, problem, product, reference)
                except WrongResultError as error:
                    yield subject, {"error": str(error)}
                else:
                    yield subject, record | {"wall_seconds": time.monotonic() - start}

    def _measure(
        self, subject: str, problem: Problem, of_cublas: Product, reference: Sampler
    ) -> child.Record:
        """Time one subject, a version in turn with cuBLAS; raises WrongResultError."""
        reference.restart()
        if subject == CUBLAS:
            return self._record(problem, of_cublas, reference, _sample([reference]))
        operands = of_cublas.operands
        if LADDER[subject].b_layout != "row":
            operands = Operands(problem, LADDER[subject].b_layout, self.values, PLACES)
        product = Product(by_version(subject), operands)
        sampler = Sampler(product, self.stream, self.monitor)
        sampler.prepare()
        stopped = _sample([sampler, reference])
        seconds = [sample.seconds for sample in reference.samples]
        return self._record(problem, product, sampler, stopped) | {
            "cublas_seconds": seconds,
            "ratio_to_cublas": [
                theirs / mine.seconds for theirs, mine in zip(seconds, sampler.samples, strict=True)
            ],
        }

    def _record(
        self, problem: Problem, product: Product, sampler: Sampler, stopped: str
    ) -> child.Record:
        samples = sampler.samples
        gflops = [problem.flops / sample.seconds / 1e9 for sample in samples]
        return {
            "seconds": [sample.seconds for sample in samples],
            "cycles": [sample.cycles for sample in samples],
            "gflops": gflops,
            "share_of_peak": [sample_gflops / self.peak_gflops for sample_gflops in gflops],
            "low_end_seconds": low_end(samples),
            "readings": [asdict(sample.reading) for sample in samples],
            "plan": asdict(sampler.plan),
            "settled": sampler.settled,
            "stopped": stopped,
            "operand_sets": product.sets,
            "residual": asdict(product.residual),
            "error_over_bound": product.residual.worst,
        }


def _sample(samplers: Sequence[Sampler]) -> str:
    """Let samplers sample in turn until they have enough, and verify; why it was enough."""
    while not (stopped := reason_to_stop(samplers, CAP_SECONDS)):
        for sampler in samplers:
            sampler.sample()
    for sampler in samplers:
        sampler.finish()
    return stopped


def _reason_to_skip(subject: str, device: gpu.Gpu) -> str | None:
    """Why the installed package has no such version for this GPU; None if it has."""
    if subject == CUBLAS:
        return None
    import sgemm

    if subject not in sgemm.LADDER:
        return f"this commit has no {subject}"
    needed = LADDER[subject].min_compute_capability
    if device.compute_capability < needed:
        return f"{subject} needs compute capability {needed[0]}.{needed[1]}"
    return None
