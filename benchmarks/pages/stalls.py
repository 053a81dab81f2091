"""Where the warps' time goes, by Nsight Compute: the bottleneck moves from version to version."""

from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element

from . import cells
from .markup import element
from .results import Run

TEXTS = ("Bottleneck", "Largest shares of the warps' time")
LARGEST = 3
"""So many stall reasons are named for each version."""


def of_run(profile: Mapping[str, Any], run: Run) -> dict[str, Mapping[str, Any]]:
    """The rows of ``python -m benchmarks profile`` of those versions that a run has timed."""
    problem = profile["environment"]["problem"]
    return {
        row["version"]: row
        for row in profile["rows"]
        if run.figure("gflops", row["version"], problem) is not None
    }


def section(profile: Mapping[str, Mapping[str, Any]], environment: Mapping[str, Any]) -> Element:
    """``profile`` has the rows of ``python -m benchmarks profile`` by version."""
    commit = environment.get("checkout")
    pipes = list(dict.fromkeys(pipe for row in profile.values() for pipe in row["pipes"]))
    head = element(
        "tr",
        *cells.headings(("Version", *TEXTS, *map(_words, pipes)), of_text=TEXTS),
    )
    rows = [
        element(
            "tr",
            cells.row_heading(name),
            element("td", row["bottleneck"], class_="text", data_label=TEXTS[0]),
            _largest(row["stalls"]),
            *(_share(row["pipes"].get(pipe), _words(pipe)) for pipe in pipes),
            data_version=name,
        )
        for name, row in profile.items()
    ]
    return element(
        "section",
        element("h2", "Bottleneck"),
        element(
            "p",
            f"Stall reasons, and how busy the pipes and memories are, at "
            f"{environment['problem'].replace('x', '×')} on {environment['gpu']}; Nsight Compute "
            f"{environment['nsight_compute']}. One profile for all commits, "
            + (f"of {commit}." if commit else "which does not tell whose it is."),
        ),
        cells.table("What holds each version back", [head], rows, "cards"),
        id="stalls",
    )


def _largest(stalls: Mapping[str, float]) -> Element:
    largest = sorted(stalls.items(), key=lambda item: item[1], reverse=True)[:LARGEST]
    bars = [
        element(
            "div",
            f"{_words(reason)} {share:.0%}",
            class_="stall",
            style=f"--share: {share:.1%}",
            data_value=repr(share),
        )
        for reason, share in largest
    ]
    return element("td", *bars, class_="text stalls", data_label=TEXTS[1])


def _share(share: float | None, label: str) -> Element:
    return cells.empty(label) if share is None else cells.number(share, "{:.0%}", label)


def _words(name: str) -> str:
    return name.replace("_", " ")
