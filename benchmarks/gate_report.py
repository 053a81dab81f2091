"""What the gate has found: its verdicts, its summary in Markdown, and what is accepted."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .checkout import ROOT
from .document import document
from .progress import progress
from .verdict import Comparison, Gap, Verdict

ACCEPTED = ROOT / "results" / "accepted.jsonl"  # asv takes every .json there for results
RED = {
    Verdict.WRONG: 1,
    Verdict.SLOWER: 1,
    Verdict.WORSE: 1,
    Verdict.AMBIGUOUS: 2,
    Verdict.NO_MEASUREMENT: 2,
}
"""The verdicts that are not green, and their exit status."""

ACCEPTABLE = (Verdict.SLOWER, Verdict.WORSE)


@dataclass
class Row:
    """The verdict on one benchmark: a version, on a problem or of a static series."""

    version: str
    problem: str
    verdict: Verdict
    detail: str = ""
    before: float | None = None
    after: float | None = None
    unit: str = ""
    comparison: Comparison | None = None
    samples: list[dict[str, Any]] = field(default_factory=list)  # of each pair of processes


@dataclass
class Report:
    """All that a gate has found. ``compared`` says in words what it has compared, ``causes`` holds
    a text in Markdown for each slower version, ``accepted`` the reason why slower is wanted."""

    compared: str
    base: str
    head: str
    rows: list[Row] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    gpu_seconds: float = 0.0
    causes: dict[str, str] = field(default_factory=dict)
    accepted: str = ""

    def status(self) -> int:
        """1 if anything is slower or wrong, else 2 if anything could not be told, else 0."""
        return min((RED[row.verdict] for row in self._red()), default=0)

    def slower(self) -> list[Row]:
        return [row for row in self.rows if row.verdict in ACCEPTABLE]

    def accept(self, reason: str) -> None:
        """Accept what is slower, for a reason that is not empty."""
        if self.slower():
            self.accepted = reason

    def remember(self) -> None:
        """Keep what was accepted, if anything was."""
        if not self.accepted:
            return
        entry = {
            "base": self.base,
            "commit": self.head,
            "reason": self.accepted,
            "gpu": self.environment.get("gpu"),
            "changes": [
                {
                    "version": row.version,
                    "problem": row.problem,
                    "before": row.before,
                    "after": row.after,
                    "unit": row.unit,
                }
                for row in self.slower()
            ],
        }
        with ACCEPTED.open("a") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def timed(self, benchmarks: Sequence[Any]) -> Iterator[Any]:
        """The benchmarks, one by one, with a progress bar, and the time that they take counted."""
        for benchmark in progress(benchmarks):
            start = time.monotonic()
            yield benchmark
            self.gpu_seconds += time.monotonic() - start

    def document(self) -> dict[str, Any]:
        """The JSON document."""
        return document(
            "gate",
            self.environment,
            [_json_row(row) for row in self.rows],
            compared=self.compared,
            base=self.base,
            head=self.head,
            status=self.status(),
            accepted=self.accepted or None,
            gpu_seconds=round(self.gpu_seconds, 1),
            causes=self.causes,
        )

    def markdown(self) -> str:
        """The summary: what is not the same first, then all in detail, folded."""
        parts = [f"### Gate: {self.headline()}", "", *self._about()]
        if told := [row for row in self.rows if row.verdict not in _UNREMARKABLE]:
            parts += ["", *_table(told)]
        same_binary = _names(row for row in self.rows if row.verdict is Verdict.SAME_BINARY)
        if same_binary:
            parts += ["", f"The same binary, and not compared further: {same_binary}."]
        if same := [row for row in self.rows if row.verdict is Verdict.SAME]:
            parts += ["", *_folded(f"{len(same)} are the same", _table(same))]
        for name, text in self.causes.items():
            parts += ["", *_folded(f"Why {name} is slower", text.splitlines())]
        return "\n".join(parts) + "\n"

    def _red(self) -> list[Row]:
        return [
            row
            for row in self.rows
            if row.verdict in RED and not (self.accepted and row.verdict in ACCEPTABLE)
        ]

    def headline(self) -> str:
        """The outcome in a few words."""
        if red := self._red():
            return f"{_counted(red)} of {len(self.rows)} benchmarks"
        if self.accepted:
            return f"{_counted(self.slower())} and accepted"
        if all(row.verdict is Verdict.SAME_BINARY for row in self.rows):
            return "the same binary"
        return "nothing is slower" if self.compared == "speed" else "nothing is worse"

    def _about(self) -> list[str]:
        lines = [f"`{self.base[:8]}` → `{self.head[:8]}`, {self.compared}."]
        if self.environment:
            lines.append(
                f"{self.environment['gpu']}, driver {self.environment['driver']}, "
                f"{self.gpu_seconds:.0f} s of its time."
            )
        if self.accepted:
            lines.append(f"**Accepted:** {' '.join(self.accepted.split())}")
        return lines


_UNREMARKABLE = (Verdict.SAME, Verdict.SAME_BINARY)


def _counted(rows: Sequence[Row]) -> str:
    """How many of each verdict, the worst first."""
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in RED if counts[verdict])


def _names(rows: Iterator[Row]) -> str:
    return ", ".join(dict.fromkeys(row.version for row in rows))


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| version | of | before | after | time | verdict | |",
        "|---|---|--:|--:|--:|---|---|",
    ]
    for row in rows:
        seconds = row.comparison.seconds if row.comparison else None
        cells = (
            row.version,
            row.problem.replace("x", "×"),
            _figure(row.before, row.unit),
            _figure(row.after, row.unit),
            "" if seconds is None else _change(seconds),
            f"**{row.verdict.value}**" if row.verdict in RED else row.verdict.value,
            row.detail.replace("|", "\\|"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _change(gap: Gap) -> str:
    low, high = gap.interval
    return f"{gap.change:+.2%} ({low:+.2%} to {high:+.2%})"


def _folded(summary: str, lines: Sequence[str]) -> list[str]:
    return [f"<details><summary>{summary}</summary>", "", *lines, "", "</details>"]


def _json_row(row: Row) -> dict[str, Any]:
    figures = {
        name: getattr(row, name)
        for name in ("version", "problem", "detail", "before", "after", "unit", "samples")
    }
    gaps = {}
    for name in ("seconds", "cycles"):
        gap = getattr(row.comparison, name, None)
        gaps[f"change_in_{name}"] = gap and {"change": gap.change, "interval": gap.interval}
    return {**figures, "verdict": row.verdict.value, **gaps}
