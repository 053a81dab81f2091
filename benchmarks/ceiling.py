"""``python -m benchmarks ceiling``: the highest share of the FFMA peak that each version can reach,
beside the share that was measured; on any machine.

The model is ``sgemm/ceiling.py``. Measured figures are the recorded ones: the table and the
profile in docs/, and asv's results.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .checkout import ROOT
from .document import document, print_document
from .pages.results import asv_runs, table_run
from .problems import PROBLEMS, Problem, parse
from .tables import print_table

REFERENCE = "NVIDIA H200"
WAITS = ("long_scoreboard", "short_scoreboard")
"""What Nsight Compute calls waits for global and for shared memory."""
_READY = ("selected", "not_selected")


def add_parser(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "ceiling",
        help="how fast each version can be at most, beside how fast it was",
        description="The highest share of the FFMA peak that each version can reach at a shape on "
        "a GPU, by what the compiler made of it, beside what was measured. Needs no GPU.",
    )
    command.add_argument(
        "--problem",
        default=next(iter(PROBLEMS)),
        help="a shape MxNxK, or the name of a problem of the suite (default: %(default)s)",
    )
    command.add_argument(
        "--gpu", default=REFERENCE, metavar="NAME", help="or a part of it (default: %(default)s)"
    )
    command.add_argument("--json", action="store_true", help="print one JSON document")


def run(options: argparse.Namespace) -> int:
    """Compute and print."""
    problem = parse(options.problem)
    from sgemm import ceiling

    gpu = ceiling.gpu_named(options.gpu)
    found = rows(gpu, problem)
    if options.json:
        environment = {"gpu": gpu.name, "problem": problem.name, "peak_gflops": gpu.peak_gflops}
        print_document(document("ceiling", environment, found))
    else:
        _print_table(found, f"{problem.name} on {gpu.name}, {gpu.peak_gflops:,.0f} GFLOPS of FFMA")
    return 0


def rows(gpu: Any, problem: Problem) -> list[dict[str, Any]]:
    """For each version that the GPU runs its ceiling at ``problem``, and what was measured.

    Shares are of the FFMA peak: the ceiling of its computed one, what was measured of the one
    measured in the same run, which is a little lower. What is not recorded is None, and so is the
    wait for memory where some warps only copy: theirs costs nothing.
    """
    from sgemm import LADDER
    from sgemm.ceiling import ceiling
    from sgemm.compiler import runs_on
    from sgemm.inspection import inspect

    machine = gpu.name.lower().replace(" ", "-")
    measured = measured_shares(machine, problem.name)
    profiled = profiles(machine, problem.name)
    found = []
    for name, version in LADDER.items():
        if not runs_on(version, gpu.arch):
            continue
        inspected = inspect(version, gpu.arch)
        limit = ceiling(version, inspected, gpu, problem.m, problem.n, problem.k)
        stalls = profiled.get(name)
        stalled = None
        if stalls and not inspected.producer_loop:
            stalled = max(stalls[wait] for wait in WAITS)
        share = measured.get(name)
        found.append(
            {
                "version": name,
                "ceiling": limit.share,
                "limit": limit.limit,
                "limits": limit.limits,
                "ceiling_gflops": limit.share * gpu.peak_gflops,
                "stalled": stalled,
                "ceiling_after_stalls": None if stalled is None else limit.after_stalls(stalled),
                "measured": share,
                "measured_of_ceiling": share and share / limit.share,
                "waits": stalls and _largest(stalls),
            }
        )
    return found


def measured_shares(machine: str, problem: str) -> dict[str, float]:
    """Version to the recorded share of the FFMA peak: the table's, else that of the newest run."""
    shares: dict[str, float] = {}
    files = [
        json.loads(path.read_text())
        for path in (ROOT / "results" / machine).glob("*.json")
        if path.name != "machine.json"
    ]
    commits = [file["commit_hash"] for file in sorted(files, key=lambda file: file["date"])]
    order = {commit: position for position, commit in enumerate(commits)}
    runs = [run for run in asv_runs(ROOT / "results", order, {}) if run.machine == machine]
    table = ROOT / "docs" / f"table-{machine}.json"
    if table.exists():
        runs.append(table_run(table, machine))
    for run in runs:
        for (version, measured, *_), share in run.figures.get("share_of_peak", {}).items():
            if measured == problem and share is not None:
                shares[version] = share
    return shares


def profiles(machine: str, problem: str) -> dict[str, Mapping[str, float]]:
    """Version to the shares of its warps' time by what they do; empty for another problem than the
    one that was profiled."""
    path = ROOT / "docs" / f"profile-{machine}.json"
    if not path.exists():
        return {}
    content = json.loads(path.read_text())
    if content["environment"]["problem"] != problem:
        return {}
    return {row["version"]: row["stalls"] for row in content["rows"]}


def _largest(stalls: Mapping[str, float]) -> str:
    """The two reasons for which warps wait longest."""
    waits = sorted((share, why) for why, share in stalls.items() if why not in _READY)[:-3:-1]
    return ", ".join(f"{why.replace('_', ' ')} {share:.0%}" for share, why in waits)


def _print_table(found: Sequence[Mapping[str, Any]], title: str) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("version")
    for heading in ("ceiling", "GFLOPS", "measured", "of ceiling", "ceiling\nwith waits"):
        table.add_column(heading, justify="right")
    table.add_column("limited by")
    table.add_column("longest waits, of the warps' time")
    for row in found:
        table.add_row(
            row["version"],
            _percent(row["ceiling"]),
            f"{row['ceiling_gflops']:,.0f}",
            _percent(row["measured"]),
            _percent(row["measured_of_ceiling"]),
            _percent(row["ceiling_after_stalls"]),
            row["limit"],
            row["waits"] or "–",
        )
    print_table(table)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
