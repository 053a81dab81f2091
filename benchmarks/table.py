"""``python -m benchmarks table``: the whole ladder in one run.

Every version, cuBLAS and the FFMA peak take a sample in turn, round after round, so that all of
them see the same clocks and temperatures, and their ratios hold where the figures drift. Figures
are of the median sample; the low end of the seconds, the steadier one, stands beside. So does, for
problems that fit the L2 cache, the figure with it warm, and for short ones the latency.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import isfinite
from statistics import median
from typing import Any

from . import environment, gpu
from .checkout import LADDER
from .cublas import Cublas
from .document import document, print_document
from .ffma_peak import FfmaPeak
from .measure import CUBLAS, by_version, measure_empty_kernel
from .problems import PROBLEMS, Problem, parse
from .products import Layout, Multiply, Operands, Product, l2_bytes, random_values
from .tables import print_table
from .timing import CudaStream, Sampler, WrongResultError, low_end, reason_to_stop

PEAK = "FFMA peak"
ARTICLE_PROBLEM = PROBLEMS["4096x4096x4096"]
CAP_SECONDS = 5.0  # of all subjects together
LATENCY_BELOW_SECONDS = 100e-6


class KernelFailedError(RuntimeError):
    """A kernel did not run to its end."""


@dataclass
class Subject:
    """What fills one row of the table."""

    name: str
    title: str
    workload: Product | FfmaPeak
    flops: int
    sampler: Sampler
    warm: Sampler | None = None  # with its operands in the L2 cache
    article_gflops: int | None = None
    wrong: str | None = None  # what is wrong with its results

    @property
    def samplers(self) -> list[Sampler]:
        return [self.sampler, self.warm] if self.warm else [self.sampler]

    @property
    def seconds(self) -> float:
        """Of the median sample."""
        return median(sample.seconds for sample in self.sampler.samples)

    @property
    def latency(self) -> float | None:
        """The microseconds of a product so short that they say more than GFLOPS."""
        if self.wrong or not isinstance(self.workload, Product):
            return None
        return self.seconds * 1e6 if self.seconds < LATENCY_BELOW_SECONDS else None

    @property
    def gflops(self) -> float | None:
        return None if self.wrong else self.flops / self.seconds / 1e9

    @property
    def warm_gflops(self) -> float | None:
        if self.wrong or not self.warm:
            return None
        return self.flops / median(sample.seconds for sample in self.warm.samples) / 1e9

    @property
    def low_end_gflops(self) -> float | None:
        return None if self.wrong else self.flops / low_end(self.sampler.samples) / 1e9


def add_parser(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "table",
        help="the whole ladder, cuBLAS and the FFMA peak in one run",
        description="Measures every version, cuBLAS FP32 and the FFMA peak in one interleaved run.",
    )
    command.add_argument(
        "--problem",
        default=ARTICLE_PROBLEM.name,
        help="a shape MxNxK, or the name of a problem of the suite (default: %(default)s)",
    )
    command.add_argument("--source", metavar="FILE", help="measure this .cu file's kernel too")
    command.add_argument("--json", action="store_true", help="print one JSON document")


def run(options: argparse.Namespace) -> int:
    """Measure and print. The exit status: 1 if a result is wrong, else 0."""
    problem = parse(options.problem)
    device = gpu.find()
    if device is None:
        raise gpu.NoGpuError("there is no GPU, and speed is measured on nothing else")
    import sgemm

    versions = list(sgemm.LADDER.values())
    if options.source is not None:
        from sgemm.source import from_file

        versions.append(from_file(options.source))
    monitor = gpu.Monitor(device)
    monitor.require_alone(own_processes=0)
    with CudaStream() as stream:
        cublas = Cublas(stream.stream)
        subjects = _subjects(problem, versions, cublas, stream, monitor)
        overhead = measure_empty_kernel(stream, monitor)
        stopped = _measure(subjects)
        monitor.require_alone(own_processes=1)
        surroundings = environment.describe(device, monitor, cublas)
        surroundings |= {"problem": problem.name, "stopped": stopped}
        surroundings["empty_kernel_seconds"] = overhead

    rows = _rows(subjects)
    if options.json:
        print_document(document("table", surroundings, rows))
    else:
        _print_table(rows, surroundings)
    return int(any(subject.wrong for subject in subjects))


def _subjects(
    problem: Problem,
    versions: Sequence[Any],
    cublas: Cublas,
    stream: CudaStream,
    monitor: gpu.Monitor,
) -> list[Subject]:
    values = random_values(Operands.floats(problem))
    operands: dict[Layout, Operands] = {}

    def subject(name: str, title: str, native_b: Layout, multiply: Multiply) -> Subject:
        if native_b not in operands:
            operands[native_b] = Operands(problem, native_b, values)
        product = Product(multiply, operands[native_b])
        sampler = Sampler(product, stream, monitor)
        warm = None
        if problem.operand_bytes <= l2_bytes():
            in_cache = Operands(problem, native_b, values, warm=True)
            warm = Sampler(Product(multiply, in_cache), stream, monitor)
        return Subject(name, title, product, problem.flops, sampler, warm)

    subjects = []
    for version in versions:
        row = subject(version.name, version.title, version.b_layout, by_version(version))
        if problem == ARTICLE_PROBLEM:
            row.article_gflops = version.article_gflops
        subjects.append(row)
    subjects.append(subject(CUBLAS, "cuBLAS FP32", "row", cublas.multiply))
    peak = FfmaPeak()
    sampler = Sampler(peak, stream, monitor)
    subjects.append(Subject(PEAK, "multiply-adds alone", peak, peak.flops, sampler))
    return subjects


def _measure(subjects: list[Subject]) -> str | None:
    """Sample all subjects in turn; why it was stopped, None if no subject is right."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for subject in progress.track(subjects, description="warming up"):
            with _blaming(subject):
                for sampler in subject.samplers:
                    sampler.prepare()
        timed = [subject for subject in subjects if not subject.wrong]
        samplers = [sampler for subject in timed for sampler in subject.samplers]
        stopped = None
        rounds = progress.add_task("measuring", total=None)
        while timed and not (stopped := reason_to_stop(samplers, CAP_SECONDS)):
            for subject in timed:
                with _blaming(subject):
                    for sampler in subject.samplers:
                        sampler.sample()
            progress.advance(rounds)
        for subject in timed:
            with _blaming(subject):
                for sampler in subject.samplers:
                    sampler.finish()
    return stopped


@contextmanager
def _blaming(subject: Subject) -> Iterator[None]:
    """Note a wrong result with its subject; a fault of the kernel ends the run, as CUDA is then
    unusable in this process."""
    from cupy.cuda import driver, runtime

    from sgemm import KernelError
    from sgemm.causes import explain

    try:
        yield
    except WrongResultError as error:
        subject.wrong = str(error)
    except (driver.CUDADriverError, runtime.CUDARuntimeError, KernelError) as error:
        raise KernelFailedError(f"{subject.name} failed: {explain(error)}") from error


def _rows(subjects: Sequence[Subject]) -> list[dict[str, Any]]:
    gflops = {subject.name: subject.gflops for subject in subjects}
    before = {later: earlier for earlier, later in pairwise(LADDER)}

    def ratio(subject: Subject, other: str | None) -> float | None:
        mine, others = subject.gflops, gflops.get(other or "")
        return mine / others if mine and others else None

    rows = []
    for subject in subjects:
        samples = subject.sampler.samples
        residual = None if isinstance(subject.workload, FfmaPeak) else subject.workload.residual
        rows.append(
            {
                "version": subject.name,
                "title": subject.title,
                "gflops": subject.gflops,
                "low_end_gflops": subject.low_end_gflops,
                "warm_gflops": subject.warm_gflops,
                "latency_us": subject.latency,
                "gain": ratio(subject, before.get(subject.name)),
                "share_of_peak": ratio(subject, PEAK),
                "ratio_to_cublas": ratio(subject, CUBLAS),
                "error_over_bound": residual and _finite(residual.worst),
                "relative_error": residual and _finite(residual.relative),
                "article_gflops": subject.article_gflops,
                "verdict": "wrong" if subject.wrong else "right",
                "detail": subject.wrong,
                "seconds": [sample.seconds for sample in samples],
                "cycles": [sample.cycles for sample in samples],
                "readings": [asdict(sample.reading) for sample in samples],
            }
        )
    return rows


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None  # JSON has no infinity


def _print_table(rows: Sequence[Mapping[str, Any]], surroundings: Mapping[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    columns = {
        "gflops": ("GFLOPS", "{:,.0f}"),
        "low_end_gflops": ("at the low end", "{:,.0f}"),
        "warm_gflops": ("in a warm L2", "{:,.0f}"),
        "latency_us": ("latency, µs", "{:.2f}"),
        "gain": ("gain", "{:.2f}×"),
        "share_of_peak": ("of peak", "{:.1%}"),
        "ratio_to_cublas": ("of cuBLAS", "{:.1%}"),
        "error_over_bound": ("error / bound", "{:.2g}"),
        "relative_error": ("relative error", "{:.2g}"),
        "article_gflops": ("article, GFLOPS", "{:,}"),
    }
    for key in ("warm_gflops", "latency_us"):
        if all(row[key] is None for row in rows):
            del columns[key]
    clocks = [reading["sm_mhz"] for row in rows for reading in row["readings"]]
    table = Table(
        title="{problem} on {gpu}".format(**surroundings),
        caption=(
            "CUDA {cuda}, driver {driver}, NVRTC {nvrtc}, cuBLAS {cublas} ({cublas_math}); ".format(
                **surroundings
            )
            + f"SM clock {_span(clocks)} of {surroundings['max_sm_mhz']} MHz; "
            f"an empty kernel takes {surroundings['empty_kernel_seconds'] * 1e6:.1f} µs"
        ),
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("version")
    table.add_column("what it is")
    for heading, _ in columns.values():
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [
            "–" if row[key] is None else form.format(row[key]) for key, (_, form) in columns.items()
        ]
        table.add_row(row["version"], row["title"], *cells)
    console = print_table(table)
    for row in rows:
        if row["detail"]:
            console.print(Text(f"{row['version']} is {row['detail']}", style="red"))
        if low := sum(reading["low_clock"] for reading in row["readings"]):
            text = f"{row['version']}: {low} of {len(row['readings'])} samples at low clocks"
            console.print(Text(text, style="yellow"))


def _span(values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{min(known)}–{max(known)}" if known else "unknown"
