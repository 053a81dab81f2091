"""The slowdowns that were wanted, and why: what ``python -m benchmarks gate --accept`` keeps."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from . import cells
from .markup import element


def section(entries: Sequence[Mapping[str, Any]]) -> Element:
    """``entries`` are the lines of ``results/accepted.jsonl``, oldest first."""
    columns = ("Commit", "Slower", "Before", "After", "Change", "GPU", "Reason")
    head = element("tr", *cells.headings(columns, of_text=("Slower", "GPU", "Reason")))
    rows = [_row(entry, change) for entry in reversed(entries) for change in entry["changes"]]
    return element(
        "section",
        element("h2", "Accepted slowdowns"),
        cells.table("Slowdowns that were wanted", [head], rows, "cards"),
        id="accepted",
    )


def _row(entry: Mapping[str, Any], change: Mapping[str, Any]) -> Element:
    def text(content: str | None, label: str) -> Element:
        return element("td", content, class_="text", data_label=label)

    def figure(name: str) -> Element:
        value = change[name]
        if value is None:
            return cells.empty(name.capitalize())
        return cells.number(value, f"{{:,.0f}} {change['unit']}", name.capitalize())

    before, after = change["before"], change["after"]
    relative = cells.signed_percent(after / before - 1) if before and after is not None else "–"
    return element(
        "tr",
        cells.row_heading(entry["commit"][:8]),
        text(f"{change['version']}, {change['problem']}", "Slower"),
        figure("before"),
        figure("after"),
        element("td", relative, class_="figure", data_label="Change"),
        text(entry["gpu"], "GPU"),
        text(entry["reason"], "Reason"),
        data_commit=entry["commit"],
    )
