"""``python -m benchmarks sweep``: ``matmul`` as it chooses for itself, beside cuBLAS, over many
shapes.

For each shape both take turns in blocks of samples, in which clocks and power settle; figures are
of the median sample. Short products are replayed from CUDA graphs, and operands rotate through
sets that fill the L2 cache, as for the asv benchmarks.

Beside them can stand ``matmul`` as it would be without the later versions: what a version adds to
the ladder shows over all shapes, as it may be meant for few of them.
"""

import argparse
from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import median
from typing import Any

from . import environment, gpu
from .checkout import LADDER
from .cublas import Cublas
from .document import document, print_document
from .measure import by_version
from .problems import Problem, parse
from .products import Operands, Product, random_values
from .progress import progress
from .tables import print_table
from .timing import BLOCKS, CudaStream, Sampler, WrongResultError, sample_blocks

SQUARES = (
    *(128, 256, 384, 512, 640, 768, 1000, 1024, 1280, 1536, 2048, 2560, 3072, 4096),
    *(6144, 8192, 12288, 16384),
    *(127, 129, 255, 257, 1023, 1025, 2047, 2049, 4095, 4097),  # beside the tiles' edges
)
SHAPES = (
    *((size, size, size) for size in SQUARES),
    (2047, 3001, 1025),
    (64, 4096, 4096),
    (4096, 64, 4096),
    (16, 8192, 8192),
    (8192, 16, 8192),
    (128, 128, 65536),
    (512, 512, 16384),
    (16384, 16384, 128),
    (4096, 4096, 64),
    (8192, 2048, 1024),
    (1024, 8192, 2048),
    (100, 10000, 1000),
    (10000, 100, 1000),
    (4096, 4096, 4095),
)
PROBLEMS = (
    *(Problem(*shape) for shape in SHAPES),
    Problem(4096, 4096, 4096, a_offset=1),
    Problem(4096, 4096, 4096, b_layout="column"),
)
"""What is swept where nobody says which."""


def add_parser(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "sweep",
        help="matmul beside cuBLAS over many shapes",
        description="Measures matmul, which chooses version and plan, beside cuBLAS FP32.",
    )
    command.add_argument(
        "--problem",
        action="extend",
        nargs="+",
        metavar="MxNxK",
        help=f"shapes, or problems of the suite (default: {len(PROBLEMS)})",
    )
    command.add_argument(
        "--up-to",
        action="extend",
        nargs="+",
        choices=list(LADDER),
        metavar="NAME",
        default=[],
        help="measure matmul without the versions after each of these too",
    )
    command.add_argument("--json", action="store_true", help="print one JSON document")


def run(options: argparse.Namespace) -> int:
    """Measure and print. The exit status: 1 if a result is wrong, else 0."""
    problems = PROBLEMS
    if options.problem:
        problems = tuple(parse(text) for text in options.problem)
    device = gpu.find()
    if device is None:
        raise gpu.NoGpuError("there is no GPU, and speed is measured on nothing else")
    _require_run(options.up_to, device)
    monitor = gpu.Monitor(device)
    monitor.require_alone(own_processes=0)
    with CudaStream() as stream:
        cublas = Cublas(stream.stream)
        values = random_values(max(map(Operands.floats, problems)))
        rows = [
            _measure(problem, options.up_to, device, cublas, stream, monitor, values)
            for problem in progress(problems)
        ]
        monitor.require_alone(own_processes=1)
        surroundings = environment.describe(device, monitor, cublas)
    summary = summarise(rows)
    if options.json:
        print_document(document("sweep", surroundings, rows, summary=summary))
    else:
        _print_table(rows, summary, surroundings)
    return int(any(row["wrong"] for row in rows))


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The geometric mean of the ratios to cuBLAS, and the least of them with its problem; None if
    no row has one; and the geometric mean of each matmul without later versions."""
    right = [row for row in rows if row["ratio_to_cublas"]]
    if not right:
        return {"geometric_mean": None, "least": None, "least_problem": None, "up_to": {}}
    least = min(right, key=lambda row: row["ratio_to_cublas"])
    return {
        "geometric_mean": _geometric_mean([row["ratio_to_cublas"] for row in right]),
        "least": least["ratio_to_cublas"],
        "least_problem": least["problem"],
        "up_to": {
            name: _geometric_mean([row["up_to"][name]["ratio_to_cublas"] for row in right])
            for name in right[0]["up_to"]
        },
    }


def _geometric_mean(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def _require_run(names: Sequence[str], device: gpu.Gpu) -> None:
    """Raises ArgumentError for a version that the GPU cannot run."""
    from sgemm.compiler import require_runs_on
    from sgemm.versions import resolve

    for name in names:
        require_runs_on(resolve(name), device.arch)


def _measure(
    problem: Problem,
    last_versions: Sequence[str],
    device: gpu.Gpu,
    cublas: Cublas,
    stream: CudaStream,
    monitor: gpu.Monitor,
    values: Any,
) -> dict[str, Any]:
    import cupy

    from sgemm.choices import choose
    from sgemm.ladder import names_for

    shape = problem.m, problem.n, problem.k
    names = names_for(device.compute_capability)
    multiprocessors = cupy.cuda.Device().attributes["MultiProcessorCount"]
    chosen, *without_later = (
        choose(some, *shape, device.name, multiprocessors)
        for some in (names, *(names[: names.index(last) + 1] for last in last_versions))
    )
    plan = chosen.plan(*shape, multiprocessors)
    row = {
        "problem": problem.name,
        "version": chosen.name,
        "tile": chosen.tile,
        "blocks": plan.blocks,
        "shared_tiles": plan.shared_tiles,
    }
    subject_of = {chosen: "matmul"}
    for last, version in zip(last_versions, without_later, strict=True):
        subject_of.setdefault(version, f"matmul up to {last}")
    subjects = {"matmul": by_version(None), "cuBLAS": cublas.multiply}
    subjects |= {
        subject: by_version(version) for version, subject in subject_of.items() if version != chosen
    }
    operands = Operands(problem, "row", values)
    samplers = {
        subject: Sampler(Product(multiply, operands, f"{subject} is "), stream, monitor)
        for subject, multiply in subjects.items()
    }
    wrong = None
    try:
        for sampler in samplers.values():
            sampler.prepare()
        for turn in range(BLOCKS):
            sample_blocks(list(samplers.values()), turn)
        for sampler in samplers.values():
            sampler.finish()
    except WrongResultError as error:
        wrong = str(error)
    seconds = {
        subject: [sample.seconds for sample in sampler.samples]
        for subject, sampler in samplers.items()
    }

    def figures(subject: str) -> dict[str, Any]:
        mine, theirs = (None, None) if wrong else (median(seconds[s]) for s in (subject, "cuBLAS"))
        return {
            "gflops": mine and problem.flops / mine / 1e9,
            "ratio_to_cublas": mine and theirs and theirs / mine,
            "seconds": seconds[subject],
        }

    return {
        **row,
        **figures("matmul"),
        "cublas_gflops": figures("cuBLAS")["gflops"],
        "cublas_seconds": seconds["cuBLAS"],
        "up_to": {
            last: {"version": version.name, "tile": version.tile, **figures(subject_of[version])}
            for last, version in zip(last_versions, without_later, strict=True)
        },
        "wrong": wrong,
        "sm_mhz": [sample.reading.sm_mhz for sample in samplers["matmul"].samples],
    }


def _print_table(
    rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], surroundings: Mapping[str, Any]
) -> None:
    from rich.table import Table

    table = Table(
        title="matmul beside cuBLAS FP32 on {gpu}".format(**surroundings), title_justify="left"
    )
    table.add_column("M×N×K")
    table.add_column("version")
    up_to = [f"up to {last}" for last in rows[0]["up_to"]]
    for heading in ("tile", "blocks", "shared tiles", "GFLOPS", "cuBLAS", "ratio", *up_to):
        table.add_column(heading, justify="right")
    for row in rows:
        figures = ["wrong"]
        if not row["wrong"]:
            figures = [f"{row[key]:,.0f}" for key in ("gflops", "cublas_gflops")]
            ratios = [row, *row["up_to"].values()]
            figures += [f"{one['ratio_to_cublas']:.3f}" for one in ratios]
        table.add_row(
            row["problem"].replace("x", "×"),
            row["version"],
            "×".join(map(str, row["tile"])),
            str(row["blocks"]),
            str(row["shared_tiles"]),
            *figures,
        )
    console = print_table(table)
    for row in rows:
        if row["wrong"]:
            console.print(f"{row['problem']}: {row['wrong']}", style="red")
    if summary["geometric_mean"]:
        console.print(
            "geometric mean {geometric_mean:.3f}; the least {least:.3f}, at {least_problem}".format(
                **summary
            )
        )
        for last, mean in summary["up_to"].items():
            console.print(f"up to {last}: geometric mean {mean:.3f}")
