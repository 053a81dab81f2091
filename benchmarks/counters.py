"""``python -m benchmarks counters``: the simulator's counts beside the GPU's own.

Nsight Compute reads the counters of one product of each version, and the simulator counts the same
product, dealt out to as many SMs.
"""

import argparse
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from . import profile
from .checkout import LADDER
from .document import document, print_document
from .problems import Problem, parse

PROBLEMS = ("256x256x256", "200x300x520")
"""One of whole tiles and one that no tile divides."""


def _global(kind: str, unit: str) -> tuple[str, ...]:
    names = ("ld", "ldgsts_cache_access", "ldgsts_cache_bypass") if kind == "load" else ("st",)
    return tuple(f"l1tex__t_{unit}_pipe_lsu_mem_global_op_{name}.sum" for name in names)


def _shared(kind: str) -> tuple[str, str]:
    name = kind[0] + ("d" if kind == "load" else "t")
    return (
        f"smsp__inst_executed_op_shared_{name}.sum",
        f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{name}.sum",
    )


COUNTERS = {
    **{
        f"global_{kind}_{unit}": _global(kind, unit)
        for kind in ("load", "store")
        for unit in ("requests", "sectors")
    },
    **{
        f"shared_{kind}_{unit}": (_shared(kind)[position],)
        for kind in ("load", "store")
        for position, unit in enumerate(("requests", "wavefronts"))
    },
    "multiply_adds": ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",),
}
"""Count to Nsight Compute's metrics that make it up."""


def add_parser(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "counters",
        help="the simulator's counts beside Nsight Compute's",
        description="Counts one product of each version in the simulator and on the GPU.",
    )
    command.add_argument(
        "--version",
        action="append",
        choices=list(LADDER),
        help="count this one only; may be repeated (default: all that the GPU runs)",
    )
    command.add_argument(
        "--problem",
        action="append",
        metavar="MxNxK",
        help=f"may be repeated (default: {', '.join(PROBLEMS)})",
    )
    command.add_argument("--json", action="store_true", help="print one JSON document")


def run(options: argparse.Namespace) -> int:
    """Count and print; raises NoGpuError or ProfilerError where nothing can be told."""
    from sgemm.ladder import names_for

    problems = [parse(text) for text in options.problem or PROBLEMS]
    device, ncu = profile.find()
    runnable = names_for(device.compute_capability)
    names = [name for name in options.version or LADDER if name in runnable]
    known = known_metrics(ncu)
    rows = [
        row
        for problem in problems
        for name in names
        for row in compare(
            name, problem, of_simulator(name, problem), of_gpu(ncu, known, name, problem)
        )
    ]
    surroundings = profile.describe(device, ncu)
    if options.json:
        print_document(document("counters", surroundings, rows))
    else:
        _print_table(rows, surroundings)
    return 0


def known_metrics(ncu: str) -> set[str]:
    """The metrics that Nsight Compute has for this GPU; one that it lacks would fail all."""
    listed = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line[:1].isalpha()}


def of_gpu(ncu: str, known: set[str], name: str, problem: Problem) -> dict[str, float | None]:
    """Counter to what the GPU has counted, None for what it does not count."""
    counted = {
        counter: [metric for metric in metrics if metric.rsplit(".", 1)[0] in known]
        for counter, metrics in COUNTERS.items()
    }
    figures = profile.measure(
        ncu, name, problem, [metric for metrics in counted.values() for metric in metrics]
    )

    def total(metrics: Sequence[str]) -> float | None:
        values = [value for metric in metrics if (value := figures.get(metric)) is not None]
        return sum(values) if values else None

    return {counter: total(metrics) for counter, metrics in counted.items()}


def of_simulator(name: str, problem: Problem) -> dict[str, float]:
    """Counter to what the simulator counts."""
    import cupy

    import sgemm
    from sgemm.trace import trace

    sms = cupy.cuda.Device().attributes["MultiProcessorCount"]
    total = trace(sgemm.LADDER[name], problem.m, problem.n, problem.k, sms).total
    counts: dict[str, float] = {"multiply_adds": total.fmas}
    for memory, unit in (("global", "sectors"), ("shared", "wavefronts")):
        for kind in ("load", "store"):
            access = getattr(total, f"{memory}_{kind}s")
            counts[f"{memory}_{kind}_requests"] = access.requests
            counts[f"{memory}_{kind}_{unit}"] = access.units
    return counts


def compare(
    name: str,
    problem: Problem,
    simulated: Mapping[str, float],
    counted: Mapping[str, float | None],
) -> list[dict[str, Any]]:
    """A row for each counter; ``ratio`` is the GPU's count over the simulator's."""
    rows = []
    for counter in COUNTERS:
        mine, theirs = simulated[counter], counted[counter]
        ratio = None if theirs is None or not mine else theirs / mine
        rows.append(
            {
                "version": name,
                "problem": problem.name,
                "counter": counter,
                "simulator": mine,
                "gpu": theirs,
                "ratio": ratio,
            }
        )
    return rows


def _print_table(rows: Sequence[Mapping[str, Any]], surroundings: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title="Counts on {gpu}, beside the simulator's".format(**surroundings),
        caption="Nsight Compute {nsight_compute}, driver {driver}".format(**surroundings),
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("version", "problem", "counter"):
        table.add_column(heading)
    for heading in ("simulator", "GPU", "GPU / simulator"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["version"],
            row["problem"],
            row["counter"].replace("_", " "),
            f"{row['simulator']:,.0f}",
            "–" if row["gpu"] is None else f"{row['gpu']:,.0f}",
            "–" if row["ratio"] is None else f"{row['ratio']:.3f}",
        )
    Console().print(table)
