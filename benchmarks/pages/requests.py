"""What every version asks of memory, as the simulator counts."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from ..checkout import LADDER
from ..trace import SHAPES
from . import cells
from .markup import element
from .results import Run

FIGURES = {
    "sectors_per_global_load": ("Sectors / load", "{:.3g}"),
    "sectors_per_global_store": ("Sectors / store", "{:.3g}"),
    "bytes": ("Bytes", "{:,.0f}"),
    "fmas_per_global_load": ("FMA / global load", "{:.3g}"),
    "fmas_per_shared_load": ("FMA / shared load", "{:.3g}"),
    "wavefronts_per_shared_load": ("Passes / shared load", "{:.3g}"),
    "wavefronts_per_shared_store": ("Passes / shared store", "{:.3g}"),
    "barriers": ("Barriers", "{:,.0f}"),
    "asynchronous_copies": ("Async copies", "{:,.0f}"),
}
"""Metric to heading and form."""


def section(run: Run) -> Element | None:
    """None where the run has none of these figures."""
    counted = {params for metric in FIGURES for params in run.figures.get(metric, {})}
    if not counted:
        return None
    return element(
        "section",
        element("h2", "Memory requests"),
        element(
            "p",
            "Per request of a warp: sectors of 32 bytes of global memory, and passes that the "
            "banks of shared memory need; multiply-adds of a warp per request to load; bytes of "
            "all sectors; barriers of a thread. Counted by the simulator, exactly.",
        ),
        *(
            _table(run, shape, [name for name in LADDER if (name, shape) in counted])
            for shape in SHAPES
        ),
        id="requests",
    )


def _table(run: Run, shape: str, names: Sequence[str]) -> Element:
    head = element(
        "tr", *cells.headings(["Version", *(heading for heading, _ in FIGURES.values())])
    )
    rows = [
        element(
            "tr",
            cells.row_heading(name),
            *(
                cells.figure(run, metric, name, shape, form=form, label=f"{heading}, {shape}")
                for metric, (heading, form) in FIGURES.items()
            ),
            data_version=name,
        )
        for name in names
    ]
    return cells.table(shape.replace("x", "×"), [head], rows, "requests")
