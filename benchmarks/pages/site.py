"""Writes the pages."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from . import accepted, compiler, ladder, requests, results, roofline, shapes, stalls
from .markup import document, element
from .results import Run

FOLDER = "ladder"
INDEX = "index.html"
STYLE = (Path(__file__).parent / "style.css").read_text()


@dataclass(frozen=True)
class Sources:
    """All that the pages show. ``tables`` and ``profiles`` are by machine: its interleaved run, and
    what ``python -m benchmarks profile`` printed. ``accepted`` has the slowdowns that were wanted.
    """

    runs: Sequence[Run]
    tables: Mapping[str, Run]
    profiles: Mapping[str, Any]
    accepted: Sequence[Any]


def read(
    root: Path, results_dir: Path, revisions: Mapping[str, int], subjects: Mapping[str, str]
) -> Sources:
    """Read the results in ``results_dir`` and the documents in the checkout ``root``.

    ``revisions`` has each commit's place in the history, ``subjects`` the first line of each
    message.
    """
    runs = results.asv_runs(results_dir, revisions, subjects)
    documents = root / "docs"
    tables, profiles = {}, {}
    for machine in dict.fromkeys(run.machine for run in runs):
        if (path := documents / f"table-{machine}.json").exists():
            tables[machine] = results.table_run(path, machine)
        if (path := documents / f"profile-{machine}.json").exists():
            profiles[machine] = json.loads(path.read_text())
    path = results_dir / "accepted.jsonl"
    entries = [json.loads(line) for line in path.open()] if path.exists() else []
    return Sources([*runs, *tables.values()], tables, profiles, entries)


def write(html: Path, sources: Sources) -> None:
    """Write a page for each run into the folder ``ladder`` of the site, and an index: the page of
    the newest commit with speeds, on the machine that has most of these."""
    folder = html / FOLDER
    folder.mkdir(parents=True)
    for run in sources.runs:
        (folder / address(run)).write_text(_page(run, sources))
    runs = [run for run in sources.runs if run.commit]
    if runs:
        index = _page(_most_telling(runs), sources)
    else:
        index = _document("sgemm", element("p", "Nothing has been measured yet."))
    (folder / INDEX).write_text(index)


def address(run: Run) -> str:
    """The page's file name."""
    machine = re.sub(r"[^\w.-]", "_", run.machine)
    return f"{machine}-{run.commit[:12] if run.commit else 'table'}.html"


def _most_telling(runs: Sequence[Run]) -> Run:
    measured = [run for run in runs if run.has("gflops")] or runs
    machines = [run.machine for run in measured]
    machine = max(machines, key=machines.count)
    return [run for run in measured if run.machine == machine][-1]


def _page(run: Run, sources: Sources) -> str:
    profile = sources.profiles.get(run.machine)
    profiled = stalls.of_run(profile, run) if profile else {}
    sections = [
        ladder.section(run, _previous(run, sources.runs), profiled),
        stalls.section(profiled, profile["environment"]) if profile and profiled else None,
        roofline.section(run, sources.tables.get(run.machine)),
        shapes.section(run),
        compiler.section(run, _elsewhere(run, sources.runs)),
        requests.section(run),
        accepted.section(sources.accepted) if sources.accepted else None,
    ]
    shown = [section for section in sections if section is not None]
    links = [
        element("a", section.findtext("h2", ""), href=f"#{section.get('id')}") for section in shown
    ]
    links.append(element("a", "History by asv", href="../index.html"))
    return _document(
        f"sgemm: {run.machine}, {run.commit[:8] if run.commit else 'one interleaved run'}",
        element(
            "nav", element("ul", *(element("li", link) for link in links)), aria_label="Sections"
        ),
        element(
            "header",
            element("h1", *_headline(run)),
            _facts(run),
            _picker(run, sources.runs),
        ),
        element("main", *shown),
        element(
            "footer",
            element(
                "p",
                "A dash: nothing was measured. asv's history needs a web server: ",
                element("code", "asv preview"),
                ".",
            ),
        ),
    )


def _document(title: str, *body: Element) -> str:
    return document(
        element(
            "html",
            element(
                "head",
                element("meta", charset="utf-8"),
                element("meta", name="viewport", content="width=device-width, initial-scale=1"),
                element("title", title),
                element("link", rel="icon", href="data:,"),
                element("style", STYLE),
            ),
            element("body", *body),
            lang="en",
        )
    )


def _headline(run: Run) -> list[Element | str]:
    if run.commit is None:
        return [run.machine, element("small", run.title)]
    day = f"{run.date.day} {run.date:%B %Y}" if run.date else ""
    return [
        f"{run.machine} · ",
        element("code", run.commit[:8]),
        element("small", f"{run.title} ({day})"),
    ]


def _facts(run: Run) -> Element:
    """What is known about where the figures are from."""
    known = {name: value for name, value in run.facts.items() if value and name != "version"}
    return element(
        "details",
        element("summary", "Machine and software"),
        element(
            "dl",
            *(
                element("div", element("dt", name.replace("_", " ")), element("dd", str(value)))
                for name, value in known.items()
            ),
        ),
    )


def _picker(run: Run, runs: Sequence[Run]) -> Element:
    """Links to the pages of other machines and commits."""
    machines = dict.fromkeys(other.machine for other in runs)
    same_machine = [other for other in runs if other.machine == run.machine]
    return element(
        "div",
        element(
            "p",
            "Machine: ",
            *(
                _link(_newest(machine, runs), machine, machine == run.machine)
                for machine in machines
            ),
        ),
        element(
            "details",
            element("summary", f"Runs on {run.machine}: {len(same_machine)}"),
            element(
                "ul",
                *(
                    element("li", _link(other, _name(other), other is run))
                    for other in reversed(same_machine)
                ),
            ),
            class_="runs",
        ),
        class_="picker",
    )


def _link(run: Run, text: str, current: bool) -> Element:
    return element("a", text, href=address(run), aria_current="page" if current else None)


def _name(run: Run) -> str:
    return f"{run.commit[:8]} {run.title}" if run.commit else run.title


def _newest(machine: str, runs: Sequence[Run]) -> Run:
    return [run for run in runs if run.machine == machine and run.commit][-1]


def _previous(run: Run, runs: Sequence[Run]) -> Run | None:
    """The run of the last earlier commit whose speeds that machine measured."""
    same_machine = [other for other in runs if other.machine == run.machine and other.commit]
    if run not in same_machine:
        return None
    earlier = same_machine[: same_machine.index(run)]
    return next((other for other in reversed(earlier) if other.has("gflops")), None)


def _elsewhere(run: Run, runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Other machines' pages on the same commit that have the compiler's figures."""
    return [
        (other.machine, f"{address(other)}#compiler")
        for other in runs
        if run.commit and other.commit == run.commit and other.has("registers")
    ]
