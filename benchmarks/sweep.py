"""``python -m benchmarks sweep``: ``matmul`` as it chooses for itself, beside cuBLAS, over many
shapes.

For each shape both take turns in blocks of samples, in which clocks and power settle; figures are
of the median sample. Short products are replayed from CUDA graphs, and operands rotate through
sets that fill the L2 cache, as for the asv benchmarks.

Versions that are named stand beside them, each on every shape: what a version adds to the ladder
shows over all shapes, as it may be meant for few of them.
"""

import argparse
from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import median
from typing import Any

from . import environment, gpu
from .cublas import Cublas
from .document import document, print_document
from .measure import by_version
from .problems import Problem, parse
from .products import Operands, Product, random_values
from .progress import progress
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
        action="append",
        metavar="MxNxK",
        help=f"a shape, or a problem of the suite; may be repeated (default: {len(PROBLEMS)})",
    )
    command.add_argument(
        "--version",
        action="append",
        metavar="NAME",
        default=[],
        help="measure this version on each shape too; may be repeated",
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
    versions = _versions(options.version, device)
    monitor = gpu.Monitor(device)
    monitor.require_alone(own_processes=0)
    with CudaStream() as stream:
        cublas = Cublas(stream.stream)
        values = random_values(max(map(Operands.floats, problems)))
        rows = [
            _measure(problem, versions, device, cublas, stream, monitor, values)
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
    no row has one. With versions that were named, the geometric mean of each."""
    right = [row for row in rows if row["ratio_to_cublas"]]
    if not right:
        return {"geometric_mean": None, "least": None, "least_problem": None, "of_versions": {}}
    least = min(right, key=lambda row: row["ratio_to_cublas"])
    return {
        "geometric_mean": _geometric_mean([row["ratio_to_cublas"] for row in right]),
        "least": least["ratio_to_cublas"],
        "least_problem": least["problem"],
        "of_versions": {
            name: _geometric_mean([row["of_versions"][name]["ratio_to_cublas"] for row in right])
            for name in right[0]["of_versions"]
        },
    }


def _geometric_mean(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def _versions(names: Sequence[str], device: gpu.Gpu) -> dict[str, Any]:
    """The versions of these names, all of which must run on the GPU."""
    from sgemm.compiler import require_runs_on
    from sgemm.versions import resolve

    versions = {name: resolve(name) for name in names}
    for version in versions.values():
        require_runs_on(version, device.arch)
    return versions


def _measure(
    problem: Problem,
    versions: Mapping[str, Any],
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
    chosen = choose(names, *shape, device.name, multiprocessors)
    plan = chosen.plan(*shape, multiprocessors)
    row = {
        "problem": problem.name,
        "version": chosen.name,
        "tile": chosen.tile,
        "blocks": plan.blocks,
        "shared_tiles": plan.shared_tiles,
    }
    subjects = {"matmul": by_version(None), "cuBLAS": cublas.multiply}
    for name, version in versions.items():
        if version != chosen:
            subjects[name] = by_version(version)
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
        "of_versions": {name: figures(name if name in subjects else "matmul") for name in versions},
        "wrong": wrong,
        "sm_mhz": [sample.reading.sm_mhz for sample in samplers["matmul"].samples],
    }


def _print_table(
    rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], surroundings: Mapping[str, Any]
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title="matmul beside cuBLAS FP32 on {gpu}".format(**surroundings), title_justify="left"
    )
    table.add_column("M×N×K")
    table.add_column("version")
    names = list(rows[0]["of_versions"])
    for heading in ("tile", "blocks", "shared tiles", "GFLOPS", "cuBLAS", "ratio", *names):
        table.add_column(heading, justify="right")
    for row in rows:
        figures = ["wrong"]
        if not row["wrong"]:
            figures = [f"{row[key]:,.0f}" for key in ("gflops", "cublas_gflops")]
            ratios = [row, *row["of_versions"].values()]
            figures += [f"{one['ratio_to_cublas']:.3f}" for one in ratios]
        table.add_row(
            row["problem"].replace("x", "×"),
            row["version"],
            "×".join(map(str, row["tile"])),
            str(row["blocks"]),
            str(row["shared_tiles"]),
            *figures,
        )
    console = Console()
    console.print(table)
    for row in rows:
        if row["wrong"]:
            console.print(f"{row['problem']}: {row['wrong']}", style="red")
    if summary["geometric_mean"]:
        console.print(
            "geometric mean {geometric_mean:.3f}; the least {least:.3f}, at {least_problem}".format(
                **summary
            )
        )
        for name, mean in summary["of_versions"].items():
            console.print(f"{name} on all: geometric mean {mean:.3f}")
