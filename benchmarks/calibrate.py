"""``python -m benchmarks calibrate``: how often the gate is wrong.

Processes of one and the same build take turns, and every two of them are compared as the gate
compares base and head: what it calls slower is a false alarm. Some processes also take samples that
a spinning kernel has slowed down by a known share: what the gate does not call slower is a miss.

N processes give N(N-1)/2 comparisons of the whole gate. They take turns until every two of them
have enough rounds; of two that are compared, those rounds count that they would have taken alone.
Each comparison that takes a second pair of processes takes one that shares no process with the
first. Comparisons that share a process are not independent; the intervals take them as if they
were.

Samples are kept benchmark by benchmark, so a run that is cut short is continued by the same command
where it stopped. From there on it has other processes in the places of the first ones.
"""

import argparse
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field
from itertools import combinations
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from . import builds, gpu
from .checkout import LADDER
from .distributions import clopper_pearson
from .document import document, print_document
from .gate import BENCHMARKS, Benchmark
from .progress import progress
from .tables import print_table
from .turns import Failure, Outcome, SamplingProcess, get_ready, take_turns
from .verdict import Comparison, Samples, Verdict, compare, settle, until_precise

SHARES = (0.005, 0.01, 0.02, 0.05)
"""The slowdowns that are planted, as shares of the time."""

PLANTED_VERSIONS = tuple(LADDER)[3:5]
"""One whose time varies from launch to launch, v3, and one whose does not."""

PLANTED_PROBLEMS = (
    "256x256x256",
    "512x512x512",
    "1024x1024x1024",
    "2048x2048x2048",
    "4096x4096x4096",
)
ASV_FACTORS = (1.05, 1.1)
"""The factors that plain ``asv continuous`` is asked with; 1.1 is its default."""

FURTHER_BENCHMARKS = [
    (version, problem)
    for version in PLANTED_VERSIONS
    for problem in PLANTED_PROBLEMS
    if (version, problem) not in BENCHMARKS
]
"""What is calibrated beside all that the gate compares."""

UNDECIDED = (Verdict.AMBIGUOUS, Verdict.NO_MEASUREMENT)
MIN_PROCESSES = 4  # two pairs
MIN_PLANTED = 3  # two, should the first one be compared with the second
Pair = tuple[int, int]

_MALFORMED = (*(AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError),)
"""What reading a line raises that is none of ``sample``'s."""


def add_parser(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "calibrate",
        help="how often the gate is wrong, on this GPU",
        description="Compares identical and slowed-down code as the gate does; prints error rates.",
    )
    command.add_argument(
        "--processes", type=int, default=12, metavar="N", help="default: %(default)s"
    )
    command.add_argument(
        "--planted",
        type=int,
        default=8,
        metavar="N",
        help="how many of them also take slowed-down samples (default: %(default)s)",
    )
    command.add_argument(
        "--samples",
        metavar="FILE",
        help="keep the samples, as JSON Lines; a run that was cut short is continued there",
    )
    command.add_argument(
        "--from",
        dest="recorded",
        nargs="+",
        metavar="FILE",
        help="judge samples kept before, of one run per file, instead of taking any",
    )
    command.add_argument("--json", action="store_true", help="print one JSON document")


Recorded = list[dict[float, Samples]]
"""What each process has sampled of one benchmark, by planted share; nothing if it failed."""


@dataclass
class Session:
    """What one run has recorded, and the seconds that it took."""

    environment: dict[str, Any]
    recorded: dict[Benchmark, Recorded] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def recorded_of_a_gate(self) -> int:
        """How many of what is recorded a gate compared at that time."""
        return len(self.recorded.keys() - {*FURTHER_BENCHMARKS})

    @property
    def benchmarks(self) -> int:
        """How many that were; runs of which no word is kept were never cut short."""
        return int(self.environment.get("benchmarks", self.recorded_of_a_gate))

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add what a line after the first one has kept."""
        if "gpu_seconds" in entry:  # in the end, before each benchmark had its own
            self.seconds = float(entry["gpu_seconds"])
        elif "continued" in entry:
            self.environment.setdefault("continued", []).append(entry["continued"])
        else:
            recorded = _processes(entry["processes"])
            first = next(iter(self.recorded.values()), recorded)
            if len(recorded) != len(first):
                raise ValueError(f"{len(recorded)} processes, and {len(first)} before")
            self.recorded[str(entry["version"]), str(entry["problem"])] = recorded
            self.seconds += float(entry.get("seconds", 0.0))

    def remaining(self) -> list[Benchmark]:
        """What is still to be sampled."""
        return [b for b in (*BENCHMARKS, *FURTHER_BENCHMARKS) if b not in self.recorded]


@dataclass
class Rate:
    """How many trials of how many went one way; both add up over sessions."""

    hits: int = 0
    trials: int = 0

    def count(self, hit: bool) -> None:
        self.hits += hit
        self.trials += 1

    def document(self) -> dict[str, Any]:
        if not self.trials:
            return {"hits": 0, "trials": 0, "rate": None, "interval": None}
        interval = clopper_pearson(self.hits, self.trials)
        return {
            "hits": self.hits,
            "trials": self.trials,
            "rate": self.hits / self.trials,
            "interval": interval,
        }


@dataclass
class Judged:
    """What the gate, and asv by each factor, have called slower; ``undecided`` what the gate could
    not tell."""

    gate: Rate = field(default_factory=Rate)
    undecided: Rate = field(default_factory=Rate)
    asv: dict[float, Rate] = field(default_factory=lambda: {f: Rate() for f in ASV_FACTORS})

    def document(self) -> dict[str, Any]:
        return {
            "slower": self.gate.document(),
            "undecided": self.undecided.document(),
            "asv_continuous": {str(factor): rate.document() for factor, rate in self.asv.items()},
        }


@dataclass
class Calibration:
    """The rates, of all sessions together; a share of 0 is identical code."""

    gates: Judged = field(default_factory=Judged)
    benchmarks: dict[tuple[str, str, float], Judged] = field(default_factory=dict)

    def of(self, version: str, problem: str, share: float) -> Judged:
        return self.benchmarks.setdefault((version, problem, share), Judged())


def run(options: argparse.Namespace) -> int:
    """Sample, judge and print; 0, or an error that says why there are no rates."""
    if options.recorded:
        sessions = [_to_judge(Path(path)) for path in options.recorded]
    else:
        if options.processes < MIN_PROCESSES:
            raise ValueError(f"--processes: {MIN_PROCESSES} at least, found {options.processes}")
        if 0 < options.planted < MIN_PLANTED:
            raise ValueError(f"--planted: none or {MIN_PLANTED} at least, found {options.planted}")
        _asv_s_statistics()  # without it nothing could be judged in the end
        sessions = [sample(options.processes, options.planted, options.samples)]
    calibration = Calibration()
    for session in sessions:
        judge(session, calibration)
    result = rates(calibration, sessions)
    if options.json:
        print_document(result)
    else:
        _print_table(result)
    return 0


def sample(processes: int, planted: int, keep: str | None) -> Session:
    """Take the samples of every benchmark in so many processes, of which the first so many are
    slowed down too; append them to the file ``keep`` as they come, after those that it has."""
    if gpu.find() is None:
        raise gpu.NoGpuError("there is no GPU, and only there the gate can be calibrated")
    path = Path(keep or os.devnull)
    with ExitStack() as stack:
        file = stack.enter_context(path.open("a"))
        begun, cut_off = _begun(path, file) if path.is_file() else (None, b"")
        if begun and not begun.remaining():
            raise ValueError(
                f"--samples: {path} is complete: judge it by --from, or name another file"
            )
        build = builds.of_checkout(sys.executable)
        running = [
            stack.enter_context(SamplingProcess(build, SHARES if i < planted else ()))
            for i in range(processes)
        ]
        get_ready(running)
        conditions = {
            **running[0].environment,
            "processes": processes,
            "planted": planted,
            "benchmarks": len(BENCHMARKS),
        }
        now = {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "time": time.strftime("%H:%M:%S UTC", time.gmtime()),
        }
        session = begun or Session(conditions | now)
        if begun:
            _require_same_conditions(begun, conditions, path)
            begun.environment.setdefault("continued", []).append(now)
        else:
            _require_same_beginning(cut_off, conditions, path)
        if cut_off:
            file.truncate(path.stat().st_size - len(cut_off))
        first = {"continued": now} if begun else session.environment
        print(json.dumps(first), file=file, flush=True)
        for version, problem in progress(session.remaining()):
            start = time.monotonic()
            is_planted = version in PLANTED_VERSIONS and problem in PLANTED_PROBLEMS
            taken = take_turns(running, version, problem, len(BENCHMARKS), planted=is_planted)
            for failure in taken:
                if isinstance(failure, Failure):
                    print(f"{version} at {problem}: {failure.reason}", file=sys.stderr)
            recorded = [_samples(outcome) for outcome in taken]
            session.recorded[version, problem] = recorded
            seconds = round(time.monotonic() - start, 1)
            session.seconds += seconds
            print(_line(version, problem, seconds, recorded), file=file, flush=True)
    session.environment["gpu_seconds"] = round(session.seconds)
    return session


def _begun(path: Path, file: TextIO) -> tuple[Session | None, bytes]:
    """The run whose samples are in a file, None if no line of it is whole, and the line that it was
    writing when it was cut short. Nobody else begins with that file as long as it is open."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(
            f"--samples: another calibrate is writing to {path}; wait for its end, or name another "
            "file"
        ) from error
    _, newline, cut_off = path.read_bytes().rpartition(b"\n")
    return read(path) if newline else None, cut_off


def _to_judge(path: Path) -> Session:
    try:
        session = read(path)
    except OSError as error:
        raise OSError(f"--from: {path} cannot be read ({error.strerror})") from error
    if not session.recorded:
        raise ValueError(
            f"--from: {path} holds no benchmark yet, its run was cut short before the first; "
            "--samples continues it"
        )
    return session


def read(path: Path) -> Session:
    """The session that ``sample`` has kept, as far as it came; ValueError for any other file."""
    *lines, _cut_off = path.read_bytes().split(b"\n")
    session = None
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if session is None:
                session = _begin(entry)
            else:
                session.add(entry)
        except _MALFORMED as error:
            reason = f"line {number}: {type(error).__name__}: {error}"
            raise _no_samples(path, reason) from error
    if session is None:
        raise _no_samples(path, "no line is whole")
    session.environment["gpu_seconds"] = round(session.seconds)
    session.environment["benchmarks"] = session.benchmarks
    return session


def _no_samples(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path}: no samples of calibrate ({reason}); name another file")


def _begin(header: dict[str, Any]) -> Session:
    """A session of which the first line is known; ValueError for another kind of line."""
    if "gpu" not in header or int(header.get("benchmarks", 1)) < 1:
        raise ValueError("not where and how it ran")
    return Session(header)


def _processes(kept: Sequence[Mapping[str, Sequence[Sequence[float]]]]) -> Recorded:
    """What a line has kept of each process; ValueError for what cannot be compared."""
    recorded = [
        {float(share): Samples(*series) for share, series in process.items()} for process in kept
    ]
    all_series = [
        values
        for process in recorded
        for samples in process.values()
        for values in (samples.seconds, samples.cycles)
    ]
    if len(recorded) < MIN_PROCESSES:
        raise ValueError(f"{MIN_PROCESSES} processes at least, found {len(recorded)}")
    if len({len(values) for values in all_series}) > 1:
        raise ValueError("processes of different numbers of rounds")
    if not all(0 < value < inf for values in all_series for value in values or [0]):
        raise ValueError("a sample is no positive number")
    return recorded


def _require_same_beginning(cut_off: bytes, conditions: Mapping[str, Any], path: Path) -> None:
    """Raises ValueError where a file without one whole line is not what a run under these
    conditions leaves that is cut short while it writes its first one."""
    known = json.dumps(conditions).encode()[:-1]  # what follows is when it began
    if cut_off[: len(known)] != known[: len(cut_off)]:
        raise ValueError(f"--samples: {path} holds something else; name another file")


def _require_same_conditions(begun: Session, conditions: Mapping[str, Any], path: Path) -> None:
    """Raises ValueError where a run cannot be continued."""
    differing = [
        f"{name} is {value}, not {begun.environment.get(name)}"
        for name, value in conditions.items()
        if begun.environment.get(name) != value
    ]
    if differing:
        raise ValueError(
            f"--samples: {path} cannot be continued here: {'; '.join(differing)}; name another file"
        )


def _samples(outcome: Outcome) -> dict[float, Samples]:
    if isinstance(outcome, Failure):
        return {}
    return {share: series.samples for share, series in outcome.items()}


def _line(version: str, problem: str, seconds: float, recorded: Recorded) -> str:
    processes = [
        {
            str(share): [[_rounded(value) for value in series] for series in astuple(samples)]
            for share, samples in process.items()
        }
        for process in recorded
    ]
    return json.dumps(
        {"version": version, "problem": problem, "seconds": seconds, "processes": processes}
    )


def _rounded(value: float) -> float:
    return float(f"{value:.7g}")


def judge(session: Session, calibration: Calibration) -> None:
    """Add what the gate, and asv, say of every two processes of a session, and of whole gates if it
    was not cut short."""
    count = max(len(recorded) for recorded in session.recorded.values())
    for pair, other in _two_pairs(count):
        alarms = []
        for (version, problem), recorded in session.recorded.items():
            verdict = _gate(recorded, pair, other, 0.0, session.benchmarks)
            asv = _asv(recorded, pair, 0.0)
            _count(calibration.of(version, problem, 0.0), verdict, asv)
            if (version, problem) not in FURTHER_BENCHMARKS:
                alarms.append((verdict, asv))
        if len(alarms) == session.benchmarks:
            verdicts, asvs = zip(*alarms, strict=True)
            whole = next((v for v in (Verdict.SLOWER, *UNDECIDED) if v in verdicts), Verdict.SAME)
            any_asv = {factor: any(asv[factor] for asv in asvs) for factor in ASV_FACTORS}
            _count(calibration.gates, whole, any_asv)

        for base, head in (pair, pair[::-1]):
            for (version, problem), recorded in session.recorded.items():
                for share in recorded[head].keys() - {0.0}:
                    heads = [i for i, process in enumerate(recorded) if share in process]
                    if len(heads) < MIN_PLANTED:
                        continue
                    again = _another(len(recorded), heads, base, head)
                    verdict = _gate(recorded, (base, head), again, share, session.benchmarks)
                    asv = _asv(recorded, (base, head), share)
                    _count(calibration.of(version, problem, share), verdict, asv)


def _two_pairs(count: int) -> Iterator[tuple[Pair, Pair]]:
    """Every two of so many processes, base and head, and the two that are compared where those
    leave it open. Each process is base about as often as head."""
    pairs = [(i, j) if (i + j) % 2 else (j, i) for i, j in combinations(range(count), 2)]
    for position, pair in enumerate(pairs):
        middle = position + len(pairs) // 2
        candidates = (pairs[(middle + step) % len(pairs)] for step in range(len(pairs)))
        yield pair, next(other for other in candidates if not {*pair} & {*other})


def _another(count: int, heads: Sequence[int], base: int, head: int) -> Pair:
    """A base and a slowed-down head that are not those given."""
    after = heads.index(head) + 1
    other_head = next(i for i in (*heads[after:], *heads) if i not in (base, head))
    others = ((other_head + step) % count for step in range(1, count))
    return next(i for i in others if i not in (base, head)), other_head


def _gate(recorded: Recorded, first: Pair, second: Pair, share: float, benchmarks: int) -> Verdict:
    def compared(pair: Pair) -> Comparison:
        base, head = recorded[pair[0]].get(0.0), recorded[pair[1]].get(share)
        if base is None or head is None:
            return Comparison(Verdict.NO_MEASUREMENT)
        return compare(*until_precise(base, head, benchmarks), benchmarks)

    return settle(compared(first), lambda: compared(second)).verdict


def _asv(recorded: Recorded, pair: Pair, share: float) -> dict[float, bool]:
    """Whether ``asv continuous`` calls the head slower, by factor: by medians, if asv's own test
    finds the samples to differ."""
    is_different, compute_stats = _asv_s_statistics()
    base, head = recorded[pair[0]].get(0.0), recorded[pair[1]].get(share)
    if base is None or head is None:
        return dict.fromkeys(ASV_FACTORS, False)
    ratio = median(head.seconds) / median(base.seconds)
    if ratio <= min(ASV_FACTORS):
        return dict.fromkeys(ASV_FACTORS, False)
    both = [list(samples.seconds) for samples in (base, head)]
    differ = is_different(*both, *(compute_stats(samples, 1)[1] for samples in both))
    return {factor: bool(differ and ratio > factor) for factor in ASV_FACTORS}


def _asv_s_statistics() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """By what asv tells that samples differ; ImportError where there is no asv."""
    from asv._stats import is_different
    from asv_runner.statistics import compute_stats

    return is_different, compute_stats


def _count(judged: Judged, verdict: Verdict, asv: Mapping[float, bool]) -> None:
    judged.gate.count(verdict is Verdict.SLOWER)
    judged.undecided.count(verdict in UNDECIDED)
    for factor, slower in asv.items():
        judged.asv[factor].count(slower)


def rates(calibration: Calibration, sessions: Sequence[Session]) -> dict[str, Any]:
    """The JSON document."""
    return document(
        "calibrate",
        [session.environment for session in sessions],
        [
            {"version": version, "problem": problem, "share": share, **judged.document()}
            for (version, problem, share), judged in sorted(calibration.benchmarks.items())
        ],
        gates=calibration.gates.document(),
    )


def _print_table(result: Mapping[str, Any]) -> None:
    from rich.table import Table

    gates = result["gates"]
    table = Table(
        title=f"called slower, of comparisons of processes, on {result['environment'][0]['gpu']}",
        caption=f"whole gates of identical code called slower: {cell(gates['slower'])}, "
        f"undecided: {cell(gates['undecided'])}",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("version", "problem", "slowed down by"):
        table.add_column(heading)
    factors = [f"asv continuous, {factor}" for factor in ASV_FACTORS]
    for heading in ("gate", "undecided", *factors):
        table.add_column(heading, justify="right")
    for row in result["rows"]:
        rates = (row["slower"], row["undecided"], *row["asv_continuous"].values())
        share = f"{row['share']:.1%}" if row["share"] else "identical code"
        table.add_row(row["version"], row["problem"], share, *map(cell, rates))
    print_table(table)


def cell(rate: Mapping[str, Any]) -> str:
    """A rate with its trials and interval, as tables show it."""
    if not rate["trials"]:
        return "–"
    low, high = rate["interval"]
    return f"{rate['hits']}/{rate['trials']} ({low:.1%}–{high:.1%})"
