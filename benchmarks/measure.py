"""Measures one version on a GPU, in a child process (see ``child``): all its problems, so that one
measurement serves every benchmark and CUDA starts once.

What a version is compared with is measured in the same child: the FFMA peak before the problems,
and cuBLAS, on each problem, in turn with the version.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from . import child, environment, gpu
from .checkout import LADDER
from .cublas import Cublas
from .ffma_peak import FfmaPeak
from .problems import PROBLEMS, Problem
from .products import Layout, Multiply, Operands, Product, random_values
from .timing import (
    CAP_SECONDS,
    CudaStream,
    Sampler,
    WrongResultError,
    low_end,
    reason_to_stop,
)

CUBLAS = "cublas"
SUBJECTS = (*LADDER, CUBLAS)
"""Everything that is measured, by name."""

ENVIRONMENT = "environment"
TIMEOUT_SECONDS = 900.0


def run(subject: str) -> dict[str, child.Record]:
    """Problem name to what ``measure`` returns, ``{"error": why}`` or ``{"skip": why}``; and
    ``ENVIRONMENT`` to the environment, where the child came that far."""
    return child.collect("measure", [subject], list(PROBLEMS), TIMEOUT_SECONDS)


def answer(
    args: Sequence[str], problems: Sequence[str], emit: Callable[[str, child.Record], None]
) -> None:
    """What the child does: measure the subject ``args[0]`` on ``problems``."""
    (subject,) = args
    device = gpu.find()
    assert device is not None, "the parent has found a GPU"
    if reason := _reason_to_skip(subject, device):
        for name in problems:
            emit(name, {"skip": reason})
        return
    monitor = gpu.Monitor(device)
    monitor.require_alone(own_processes=0)
    with CudaStream() as stream:
        cublas = Cublas(stream.stream)
        peak_gflops = measure_peak(stream, monitor)
        surroundings = environment.describe(device, monitor, cublas)
        emit(ENVIRONMENT, surroundings | {"ffma_peak_gflops": peak_gflops})
        selected = [PROBLEMS[name] for name in problems]
        values = random_values(max(map(Operands.floats, selected)))
        for problem in selected:
            operands = Operands(problem, "row", values)
            reference = Product(cublas.multiply, operands, label="cuBLAS is ")
            if subject == CUBLAS:
                product, beside = reference, None
            else:
                native_b: Layout = LADDER[subject].b_layout
                if native_b != "row":
                    operands = Operands(problem, native_b, values)
                product, beside = Product(by_version(subject), operands), reference
            try:
                record = measure(product, problem, stream, monitor, peak_gflops, beside)
            except WrongResultError as error:
                record = {"error": str(error)}
            monitor.require_alone(own_processes=1)
            emit(problem.name, record)


def by_version(version: Any) -> Multiply:
    """The product by one version of the installed package."""
    import sgemm

    return lambda a, b, out: sgemm.matmul(a, b, out=out, version=version)


def measure_peak(stream: CudaStream, monitor: gpu.Monitor) -> float:
    """The GFLOPS of nothing but multiply-adds, at the low end of the samples' seconds."""
    peak = FfmaPeak()
    sampler = Sampler(peak, stream, monitor)
    sampler.prepare()
    while not reason_to_stop([sampler], CAP_SECONDS):
        sampler.sample()
    sampler.finish()
    return float(peak.flops) / low_end(sampler.samples) / 1e9


def measure(
    product: Product,
    problem: Problem,
    stream: CudaStream,
    monitor: gpu.Monitor,
    peak_gflops: float,
    beside: Product | None,
) -> child.Record:
    """Time one product, in turn with the product ``beside`` that it is compared with; raises
    WrongResultError if it is not one."""
    sampler = Sampler(product, stream, monitor)
    samplers = [sampler]
    if beside is not None:
        samplers.append(Sampler(beside, stream, monitor))
    for each in samplers:
        each.prepare()
    while not (stopped := reason_to_stop(samplers, CAP_SECONDS)):
        for each in samplers:
            each.sample()
    for each in samplers:
        each.finish()

    samples = sampler.samples
    gflops = [problem.flops / sample.seconds / 1e9 for sample in samples]
    record = {
        "seconds": [sample.seconds for sample in samples],
        "cycles": [sample.cycles for sample in samples],
        "gflops": gflops,
        "share_of_peak": [sample_gflops / peak_gflops for sample_gflops in gflops],
        "low_end_seconds": low_end(samples),
        "readings": [asdict(sample.reading) for sample in samples],
        "plan": asdict(sampler.plan),
        "settled": sampler.settled,
        "stopped": stopped,
        "operand_sets": product.sets,
        "residual": asdict(product.residual),
        "error_over_bound": product.residual.worst,
    }
    if beside is not None:
        besides = samplers[1].samples
        record["cublas_seconds"] = [sample.seconds for sample in besides]
        record["ratio_to_cublas"] = [
            theirs.seconds / mine.seconds for theirs, mine in zip(besides, samples, strict=True)
        ]
    return record


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
