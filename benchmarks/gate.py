"""``python -m benchmarks gate``: whether a commit is slower than another one.

Both are built, and what is not the same binary is sampled in turns on one GPU; ``verdict`` holds
the rule. ``--static`` compares what the compiler says of both and the simulator counts instead. The
answer is one summary in Markdown, fit for a comment on a pull request.

Exit status: 0 nothing is slower, 1 something is slower or wrong, 2 it cannot be told.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from math import expm1
from pathlib import Path
from statistics import median
from typing import Any

from . import builds, gate_report, gpu, trace
from .builds import Build
from .causes import why_slower
from .checkout import LADDER, ROOT
from .child import Record, in_shares
from .document import print_document
from .gate_report import Report, Row
from .problems import PROBLEMS, Problem
from .resources import ARCHITECTURES
from .trace import SHAPES, key_of
from .turns import Failure, Outcome, SamplingProcess, get_ready, take_turns
from .verdict import Verdict, combine, compare, is_settled

STATIC_SERIES = {"registers": "registers", "spill_bytes": "bytes spilled", "shared_bytes": "bytes"}
"""What the kernel takes of an SM, fewer being better, and its unit."""

TRACE_SERIES = {
    name.removeprefix("track_"): benchmark
    for name, benchmark in vars(trace.Trace).items()
    if name.startswith("track_")
}
"""What the simulator counts, as asv's benchmarks; by a name of this module asv would find them."""

Benchmark = tuple[str, str]
"""Version and problem."""


def _is_another_product(version: Any, problem: Problem) -> bool:
    """Whether a version computes a problem in another way than every other one."""
    if problem.b_layout == "column" and version.b_layout == "column":
        return False  # that is its native layout
    return version.float4 or problem.allows_float4


BENCHMARKS = [
    (name, problem.name)
    for name, version in LADDER.items()
    for problem in PROBLEMS.values()
    if _is_another_product(version, problem)
]
"""All that is compared."""


def add_parser(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "gate",
        help="whether a commit is slower than another one",
        description="Builds two commits, samples them in turns on one GPU and compares them. Exit "
        "status: 0 nothing is slower, 1 something is slower, worse or wrong, 2 it cannot be told.",
    )
    command.add_argument("base", metavar="BASE", help="the commit to compare with")
    command.add_argument("head", metavar="HEAD", help="the commit that may be slower")
    command.add_argument(
        "--static",
        action="store_true",
        help="compare registers, spills, shared memory and memory requests, on any machine",
    )
    command.add_argument(
        "--accept", metavar="REASON", help="why a slowdown is wanted: it is then no failure"
    )
    command.add_argument("--markdown", metavar="FILE", help="write the summary to a file too")
    command.add_argument("--json", action="store_true", help="print one JSON document")


def run(options: argparse.Namespace) -> int:
    """Compare and print; the exit status."""
    reason = (options.accept or "").strip()
    if options.markdown is not None:
        _require_writable("--markdown", Path(options.markdown))
    if reason:
        _require_writable("--accept", gate_report.ACCEPTED)
    try:
        base, head = _resolve(options.base), _resolve(options.head)
        report = (compare_static if options.static else compare_speed)(base, head)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        with suppress(OSError):  # which would hide why nothing could be told
            _write(options.markdown, f"### Gate: nothing could be told\n\n{error}\n")
        raise
    report.accept(reason)
    summary = report.markdown()
    if options.json:
        print_document(report.document())
    else:
        print(summary, end="")
    report.remember()
    _write(options.markdown, summary)
    status = report.status()
    if status == 2:
        print(f"python -m benchmarks gate: {report.headline()}", file=sys.stderr)
    return status


def _require_writable(option: str, path: Path) -> None:
    """Raises OSError where the file that an option writes in the end cannot be written."""
    existed = os.path.lexists(path)
    try:
        path.open("a").close()
    except OSError as error:
        raise OSError(f"{option}: {path} cannot be written ({error.strerror})") from error
    if not existed:
        path.unlink()


def _write(path: str | None, summary: str) -> None:
    if path is not None:
        Path(path).write_text(summary)


def _resolve(name: str) -> str:
    """The full hash of a commit; raises BuildError."""
    try:
        return builds.resolve(name)
    except builds.BuildError as error:
        if (ROOT / ".git").exists():
            raise
        raise builds.BuildError(f"{ROOT} is no git checkout: there are no commits") from error


def compare_speed(base: str, head: str) -> Report:
    """Compare the speed of two commits; raises BuildError, NoGpuError, GpuBusyError or
    SamplingError where nothing can be told."""
    report = Report("speed", base, head)
    if builds.same_sources(base, head):
        report.rows = [Row(*benchmark, Verdict.SAME_BINARY) for benchmark in BENCHMARKS]
        return report
    device = gpu.find()
    arch = device.arch if device else None
    pair = builds.build([base, head])
    before, after = (_fingerprints(build, [arch] if arch else ARCHITECTURES) for build in pair)
    untimed = {name: _verdict_untimed(before[name], after[name]) for name in LADDER}
    if arch:
        untimed |= {
            name: verdict
            for name in LADDER
            if (verdict := _verdict_not_run(arch, before[name], after[name]))
        }
    timed = [benchmark for benchmark in BENCHMARKS if not untimed[benchmark[0]]]
    if timed and device is None:
        changed = ", ".join(dict(timed))
        raise gpu.NoGpuError(
            f"there is no GPU, and {changed} changed: their speed cannot be compared",
            instead="without a GPU, --static compares what takes none",
        )
    found = measure(report, pair, timed) if timed else {}
    for benchmark in BENCHMARKS:
        verdict = untimed[benchmark[0]]
        report.rows.append(Row(*benchmark, *verdict) if verdict else found[benchmark])
    slower = (row.version for row in report.rows if row.verdict is Verdict.SLOWER)
    for name in dict.fromkeys(slower):
        report.causes[name] = why_slower(name, pair, (before[name], after[name]))
    return report


def compare_static(base: str, head: str) -> Report:
    """Compare what the compiler reports, what a launch adds to it and what the simulator counts of
    two commits, where any change is exact."""
    report = Report("registers, spills, shared memory and memory requests", base, head)
    if builds.same_sources(base, head):
        report.rows = [Row(name, "", Verdict.SAME_BINARY) for name in LADDER]
        return report
    pair = builds.build([base, head])
    before, after = (_fingerprints(build, ARCHITECTURES) for build in pair)
    requests = [key_of(name, shape) for name in LADDER for shape in SHAPES]
    counts = [_ask_at_once(build, "trace", [], requests) for build in pair]
    for name in LADDER:
        if failed := _verdict_without_figures(before[name], after[name]):
            report.rows.append(Row(name, "", *failed))
            continue
        for arch in ARCHITECTURES:
            report.rows += _compare_resources(name, arch, before[name], after[name])
        for shape in SHAPES:
            report.rows += _compare_counts(name, shape, *(c[key_of(name, shape)] for c in counts))
    return report


def _compare_resources(name: str, arch: str, before: Record, after: Record) -> Iterator[Row]:
    old, new = (record["resources"][arch] for record in (before, after))
    if "skip" in old and "skip" in new:
        return  # it is not for such GPUs
    if failed := _verdict_not_run(arch, before, after):
        yield Row(name, arch, *failed)
        return
    for series, unit in STATIC_SERIES.items():
        what = f"{arch} {series.replace('_', ' ')}"
        yield _static_row(name, what, old[series], new[series], unit)


def _compare_counts(name: str, shape: str, before: Record, after: Record) -> Iterator[Row]:
    if failed := _verdict_without_figures(before, after):
        yield Row(name, shape, *failed)
        return
    for series, benchmark in TRACE_SERIES.items():
        old, new = before[series], after[series]
        if old is None or new is None:  # one of them does nothing of that kind
            continue
        what = f"{shape} {series.replace('_', ' ')}"
        yield _static_row(name, what, old, new, benchmark.unit, benchmark.higher_is_better)


def _static_row(
    name: str, what: str, old: float, new: float, unit: str, higher_is_better: bool = False
) -> Row:
    verdict = Verdict.SAME
    if new != old:
        verdict = Verdict.BETTER if (new > old) is higher_is_better else Verdict.WORSE
    return Row(name, what, verdict, "", old, new, unit)


def _fingerprints(build: Build, architectures: Sequence[str]) -> dict[str, Record]:
    return _ask_at_once(build, "fingerprint", [str(build.folder), *architectures], list(LADDER))


def _ask_at_once(
    build: Build, module: str, args: Sequence[str], keys: Sequence[str]
) -> dict[str, Record]:
    return in_shares(lambda share: build.ask(module, args, share), keys)


def _verdict_untimed(before: Record, after: Record) -> tuple[Verdict, str] | None:
    """The verdict on a version that is not timed, and why; None if it must be."""
    if failed := _verdict_without_figures(before, after):
        return failed
    if before["fingerprint"] == after["fingerprint"]:
        return Verdict.SAME_BINARY, ""
    return None


def _verdict_not_run(arch: str, before: Record, after: Record) -> tuple[Verdict, str] | None:
    """The verdict where base or head does not run on an architecture, and why; None where both
    do. Where only head does not, it has lost GPUs."""
    if failed := _verdict_without_figures(before, after):
        return failed
    old, new = (record["resources"][arch] for record in (before, after))
    if "skip" in new and "skip" not in old:
        return Verdict.WORSE, f"head: {new['skip']}"
    return _verdict_without_figures(old, new)


def _verdict_without_figures(before: Record, after: Record) -> tuple[Verdict, str] | None:
    """The verdict where base or head has none, and why; None where both have."""
    if reason := after.get("error"):
        return Verdict.NO_MEASUREMENT, f"head: {reason}"
    if reason := after.get("skip"):
        return Verdict.NOT_COMPARABLE, f"head: {reason}"
    if reason := before.get("error") or before.get("skip"):
        return Verdict.NOT_COMPARABLE, f"base: {reason}"
    return None


def measure(
    report: Report, pair: Sequence[Build], benchmarks: Sequence[Benchmark]
) -> dict[Benchmark, Row]:
    """Sample base and head in turns; what a first pair of processes leaves open, again in a fresh
    pair. Notes in the report where it was measured, and for how long."""
    base, head = pair
    first: dict[Benchmark, Row] = {}
    for benchmark, (before, after) in _sample(report, (base, head), benchmarks, len(benchmarks)):
        first[benchmark] = judge(benchmark, before, after, len(benchmarks))
    again = [benchmark for benchmark, row in first.items() if not _is_settled(row)]
    found = dict(first)
    if again:  # head first this time
        for benchmark, (after, before) in _sample(report, (head, base), again, len(benchmarks)):
            second = judge(benchmark, before, after, len(benchmarks))
            found[benchmark] = _combined(first[benchmark], second)
    return found


def _sample(
    report: Report, pair: Sequence[Build], benchmarks: Sequence[Benchmark], count: int
) -> Iterator[tuple[Benchmark, list[Outcome]]]:
    with SamplingProcess(pair[0]) as one, SamplingProcess(pair[1]) as other:
        get_ready([one, other])
        report.environment = one.environment
        for version, problem in report.timed(benchmarks):
            yield (version, problem), take_turns([one, other], version, problem, count)


def judge(benchmark: Benchmark, before: Outcome, after: Outcome, benchmarks: int) -> Row:
    """The verdict of one pair of processes."""
    version, problem = benchmark
    if isinstance(after, Failure):
        verdict = Verdict.WRONG if after.wrong else Verdict.NO_MEASUREMENT
        return Row(version, problem, verdict, f"head: {after.reason}")
    if isinstance(before, Failure):
        verdict = Verdict.NOT_COMPARABLE if before.wrong else Verdict.NO_MEASUREMENT
        return Row(version, problem, verdict, f"base: {before.reason}")
    old, new = before[0.0], after[0.0]
    comparison = compare(old.samples, new.samples, benchmarks)
    row = Row(version, problem, comparison.verdict, comparison.detail)
    flops = PROBLEMS[problem].flops
    row.before, row.after = (flops / median(s.seconds) / 1e9 for s in (old, new))
    row.unit = "GFLOPS"
    row.comparison = comparison
    row.samples = [{"base": asdict(old), "head": asdict(new)}]
    return row


def _is_settled(row: Row) -> bool:
    return row.comparison is None or is_settled(row.comparison)


def _combined(first: Row, second: Row) -> Row:
    """The verdict of two pairs of processes: GFLOPS and samples of both."""
    if first.comparison is None or second.comparison is None:
        return second
    comparison = combine(first.comparison, second.comparison)
    row = Row(first.version, first.problem, comparison.verdict, comparison.detail)
    row.before, row.after = first.before, first.after
    if comparison.seconds is not None and first.before is not None:
        row.after = first.before * (1 + expm1(-comparison.seconds.estimate))
    row.unit = first.unit
    row.comparison = comparison
    row.samples = first.samples + second.samples
    return row
