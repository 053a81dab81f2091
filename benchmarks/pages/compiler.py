"""What the compiler made of every version, per architecture."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from ..checkout import LADDER
from . import cells
from .markup import element
from .results import Run

FIGURES = {
    "registers": "Registers",
    "spill_bytes": "Spilled, B",
    "shared_bytes": "Shared, B",
}
"""Metric to heading: registers and spilled bytes are per thread, shared memory is per block."""


def section(run: Run, elsewhere: Sequence[tuple[str, str]]) -> Element:
    """``elsewhere`` has the names and addresses of other machines' pages with these figures."""
    measured = {params for metric in FIGURES for params in run.figures.get(metric, {})}
    architectures = sorted({arch for _, arch in measured})
    content: Element
    if architectures:
        first = element(
            "tr",
            cells.heading("Version", rowspan=2),
            *(cells.heading(arch, colspan=len(FIGURES)) for arch in architectures),
        )
        second = element("tr", *map(cells.heading, [*FIGURES.values()] * len(architectures)))
        names = [name for name in LADDER if any((name, arch) in measured for arch in architectures)]
        rows = [
            element(
                "tr",
                cells.row_heading(name),
                *(_cell(run, metric, name, arch) for arch in architectures for metric in FIGURES),
                data_version=name,
            )
            for name in names
        ]
        content = cells.table("Per architecture", [first, second], rows, "compiler")
    else:
        links = [
            child for name, page in elsewhere for child in (", ", element("a", name, href=page))
        ]
        where = [" Those of the same kernels: ", *links[1:], "."] if links else []
        content = element("p", "This run has none of these figures.", *where, class_="note")
    return element(
        "section",
        element("h2", "Compiler"),
        element(
            "p",
            "Registers and spilled bytes per thread, static shared memory per block, as the pinned "
            "NVRTC compiles the commit's kernels.",
        ),
        content,
        id="compiler",
    )


def _cell(run: Run, metric: str, name: str, arch: str) -> Element:
    cell = cells.figure(
        run, metric, name, arch, form="{:,.0f}", label=f"{arch}, {FIGURES[metric].lower()}"
    )
    if metric == "spill_bytes" and run.figure(metric, name, arch):
        cell.set("class", "figure spills")
    return cell
