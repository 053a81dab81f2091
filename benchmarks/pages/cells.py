"""Tables of figures. A cell keeps its figure unrounded in ``data-value``."""

from collections.abc import Collection, Iterable
from xml.etree.ElementTree import Element

from .markup import Child, element
from .results import Run


def figure(
    run: Run, metric: str, *params: str, form: str, label: str, note: Child = None
) -> Element:
    """The cell of a metric, ``form``atted; a dash where nothing was measured."""
    if run.failed(metric, *params):
        return element("td", "failed", class_="figure failed", data_label=label)
    value = run.figure(metric, *params)
    if value is None:
        return empty(label)
    return number(value, form, label, note)


def number(value: float, form: str, label: str, note: Child = None) -> Element:
    text = form.format(value)
    return element("td", text, note, class_="figure", data_label=label, data_value=repr(value))


def empty(label: str) -> Element:
    return element("td", "–", class_="figure empty", data_label=label)


def table(caption: str, head: list[Element], rows: list[Element], kind: str) -> Element:
    """A table that scrolls by itself where the window is too narrow."""
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element("thead", *head),
            element("tbody", *rows),
            class_=kind,
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def heading(text: str, **attributes: str | float | None) -> Element:
    return element("th", text, scope="col", **attributes)


def headings(texts: Iterable[str], of_text: Collection[str] = ()) -> list[Element]:
    """The headings of columns, of which those in ``of_text`` hold text and the others figures."""
    return [heading(text, class_="text" if text in of_text else None) for text in texts]


def signed_percent(change: float) -> str:
    text = f"{change:+.1%}"
    return "±0.0%" if float(text[1:-1]) == 0 else text.replace("-", "−")


def row_heading(text: str, title: str | None = None) -> Element:
    detail = element("small", title) if title else None
    return element("th", text, detail, scope="row")
