"""Measures one version on a GPU, in a child process (see ``child``): all its problems, so that one
measurement serves every benchmark and CUDA starts once."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from . import child, environment, gpu
from .checkout import LADDER
from .cublas import Cublas
from .problems import PROBLEMS, Problem
from .products import Layout, Multiply, Operands, Product, random_values
from .timing import CudaStream, Sampler, WrongResultError

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
        emit(ENVIRONMENT, environment.describe(device, monitor, cublas))
        multiply = cublas.multiply if subject == CUBLAS else by_version(subject)
        native_b: Layout = "row" if subject == CUBLAS else LADDER[subject].b_layout
        selected = [PROBLEMS[name] for name in problems]
        values = random_values(max(map(Operands.floats, selected)))
        for problem in selected:
            product = Product(multiply, Operands(problem, native_b, values))
            try:
                record = measure(product, problem, stream, monitor)
            except WrongResultError as error:
                record = {"error": str(error)}
            monitor.require_alone(own_processes=1)
            emit(problem.name, record)


def by_version(version: Any) -> Multiply:
    """The product by one version of the installed package."""
    import sgemm

    return lambda a, b, out: sgemm.matmul(a, b, out=out, version=version)


def measure(
    product: Product, problem: Problem, stream: CudaStream, monitor: gpu.Monitor
) -> child.Record:
    """Time one product; raises WrongResultError if it is not one."""
    sampler = Sampler(product, stream, monitor)
    sampler.prepare()
    samples = [sampler.sample() for _ in range(sampler.plan.samples)]
    sampler.finish()
    return {
        "seconds": [sample.seconds for sample in samples],
        "gflops": [problem.flops / sample.seconds / 1e9 for sample in samples],
        "readings": [asdict(sample.reading) for sample in samples],
        "plan": asdict(sampler.plan),
        "operand_sets": product.sets,
        "residual": asdict(product.residual),
    }


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
