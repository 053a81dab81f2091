"""What was measured, read from asv's results and from the output of ``python -m benchmarks``."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from math import isnan
from pathlib import Path
from typing import Any

PREFIX = "track_"
CUBLAS = "cublas"

Figures = dict[str, dict[tuple[str, ...], float | None]]
"""Metric to parameters to value; None where measuring failed, no entry where there was nothing to
measure."""


@dataclass
class Run:
    """What one machine measured of one commit, or, where ``commit`` is None, the table of one
    interleaved run of ``python -m benchmarks table``."""

    machine: str
    commit: str | None
    date: datetime | None
    title: str
    facts: Mapping[str, Any]
    """What is known about the machine and its software, by name."""
    figures: Figures = field(default_factory=dict)

    def has(self, metric: str) -> bool:
        return any(value is not None for value in self.figures.get(metric, {}).values())

    def failed(self, metric: str, *params: str) -> bool:
        return self.figures.get(metric, {}).get(params, 0.0) is None

    def figure(self, metric: str, *params: str) -> float | None:
        """The value, None where there is none."""
        return self.figures.get(metric, {}).get(params)

    def ratio_to_cublas(self, version: str, problem: str) -> float | None:
        """As recorded, or else of the two speeds in this run."""
        recorded = self.figure("ratio_to_cublas", version, problem)
        if recorded is not None:
            return recorded
        speed, cublas = (self.figure("gflops", name, problem) for name in (version, CUBLAS))
        return speed / cublas if speed is not None and cublas else None


def asv_runs(folder: Path, revisions: Mapping[str, int], subjects: Mapping[str, str]) -> list[Run]:
    """The runs in asv's results of the commits in ``revisions``, in their order.

    Results of another version of a benchmark are left out. Of several environments that measured a
    commit on a machine the newest result counts.
    """
    benchmarks = _load(folder / "benchmarks.json")
    runs: dict[tuple[str, str], Run] = {}
    started: dict[tuple[str, str, str], float] = {}
    for path in sorted(folder.glob("*/*.json")):
        if path.name == "machine.json":
            continue
        document = _load(path)
        machine, commit = path.parent.name, document["commit_hash"]
        if commit not in revisions:
            continue
        run = runs.setdefault(
            (machine, commit),
            Run(
                machine=machine,
                commit=commit,
                date=datetime.fromtimestamp(document["date"] / 1000, UTC),
                title=subjects.get(commit, ""),
                facts=_load(path.parent / "machine.json") | {"Python": document["python"]},
            ),
        )
        for name, result in _results(document):
            benchmark = benchmarks.get(name)
            if benchmark is None or benchmark["version"] != result["version"]:
                continue
            metric = name.rpartition(".")[2].removeprefix(PREFIX)
            key = (machine, commit, metric)
            figures = _values(result)
            if figures and result["started_at"] >= started.get(key, 0):
                run.figures[metric] = figures
                started[key] = result["started_at"]
    return sorted(runs.values(), key=lambda run: (run.machine, revisions[run.commit or ""]))


def table_run(path: Path, machine: str) -> Run:
    """The run in a document of ``python -m benchmarks table --json``."""
    document = _load(path)
    environment = document["environment"]
    run = Run(machine, None, None, f"one interleaved run, {path.name}", environment)
    problem = environment["problem"]
    for row in document["rows"]:
        for metric in ("gflops", "share_of_peak", "ratio_to_cublas", "error_over_bound"):
            if row[metric] is not None or row["verdict"] != "right":
                run.figures.setdefault(metric, {})[row["version"], problem] = row[metric]
    return run


def _load(path: Path) -> Any:
    return json.loads(path.read_text())


def _results(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each benchmark's name and result, column name to value."""
    for name, row in document["results"].items():
        columns = document["result_columns"][: len(row)]
        yield name, dict(zip(columns, row, strict=True))


def _values(result: Mapping[str, Any]) -> dict[tuple[str, ...], float | None]:
    """Parameters to value, as in ``Figures``. asv keeps parameters as their Python source text, a
    failure as null and what was skipped as NaN."""
    combinations = list(
        product(*([text.strip("'") for text in texts] for texts in result["params"]))
    )
    values = result["result"] or [None] * len(combinations)
    return {
        params: value
        for params, value in zip(combinations, values, strict=True)
        if value is None or not isnan(value)
    }
