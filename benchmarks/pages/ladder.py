"""The ladder: every version's figures side by side."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any
from xml.etree.ElementTree import Element

from ..checkout import LADDER
from . import cells
from .markup import element
from .results import CUBLAS, Run

PROBLEM = "4096x4096x4096"
OTHERS = {CUBLAS: "cuBLAS FP32", "FFMA peak": "multiply-adds alone"}
HEADINGS = (
    "Version",
    "What changes",
    "GFLOPS",
    "Gain",
    "Of FFMA peak",
    "Of cuBLAS",
    "Error / bound",
    "Bottleneck",
    "Article, GFLOPS",
    "Article, gain",
)
_BEFORE = {later: earlier for earlier, later in pairwise(LADDER)}
_NOTICEABLE = 0.01
"""The least change of a speed, as a fraction, that is coloured; runs of one commit differ less."""


def section(run: Run, previous: Run | None, profile: Mapping[str, Mapping[str, Any]]) -> Element:
    """``previous`` is the run of an earlier commit on that machine, ``profile`` the rows of
    ``python -m benchmarks profile`` by version."""
    speeds = {
        name: speed
        for name in (*LADDER, *OTHERS)
        if (speed := run.figure("gflops", name, PROBLEM)) is not None
    }
    names = [*LADDER, *(name for name in OTHERS if name in speeds)]
    head = element("tr", *cells.headings(HEADINGS, of_text=("What changes", "Bottleneck")))
    rows = [_row(name, run, previous, profile.get(name)) for name in names]
    since = f" Small figures: the change since {_short(previous)}." if previous else ""
    return element(
        "section",
        element("h2", "Ladder"),
        element(
            "p",
            f"All at {PROBLEM.replace('x', '×')}, medians of the samples.{since} The article that "
            "the ladder comes from measured on a card of 30 to 40 TFLOPS: compare the gains.",
        ),
        _bars(speeds) if speeds else None,
        cells.table("Every version's figures", [head], rows, "cards"),
        id="ladder",
    )


def _row(name: str, run: Run, previous: Run | None, profile: Mapping[str, Any] | None) -> Element:
    version = LADDER.get(name)
    before = _BEFORE.get(name, "")

    def speed(subject: str) -> float | None:
        return run.figure("gflops", subject, PROBLEM)

    def figure(metric: str, form: str, label: str, note: Element | None = None) -> Element:
        return cells.figure(run, metric, name, PROBLEM, form=form, label=label, note=note)

    def derived(value: float | None, form: str, label: str) -> Element:
        return cells.empty(label) if value is None else cells.number(value, form, label)

    article = version.article_gflops if version else None
    article_before = LADDER[before].article_gflops if before else None
    return element(
        "tr",
        cells.row_heading(name if version else OTHERS[name], version and version.title),
        element("td", version.change if version else "", class_="text", data_label="What changes"),
        figure("gflops", "{:,.0f}", "GFLOPS", _change(name, run, previous)),
        derived(_ratio(speed(name), speed(before)), "{:.2f}×", "Gain"),
        figure("share_of_peak", "{:.1%}", "Of FFMA peak"),
        derived(run.ratio_to_cublas(name, PROBLEM), "{:.1%}", "Of cuBLAS"),
        figure("error_over_bound", "{:.2g}", "Error / bound"),
        _bottleneck(profile),
        derived(article, "{:,}", "Article, GFLOPS"),
        derived(_ratio(article, article_before), "{:.2f}×", "Article, gain"),
        data_version=name,
    )


def _ratio(value: float | None, other: float | None) -> float | None:
    return value / other if value and other else None


def _bottleneck(profile: Mapping[str, Any] | None) -> Element:
    label = "Bottleneck"
    if profile is None:
        return cells.empty(label)
    waits_for = profile["waits_for"]
    detail = element("small", waits_for) if waits_for else None
    return element("td", profile["bottleneck"], detail, class_="text", data_label=label)


def _change(name: str, run: Run, previous: Run | None) -> Element | None:
    """The change of the speed since the previous run."""
    now = run.figure("gflops", name, PROBLEM)
    then = previous and previous.figure("gflops", name, PROBLEM)
    if now is None or not then:
        return None
    change = now / then - 1
    kind = "same"
    if abs(change) >= _NOTICEABLE:
        kind = "gain" if change > 0 else "loss"
    word = {"same": "", "gain": " faster", "loss": " slower"}[kind]
    return element("small", f"{cells.signed_percent(change)}{word}", class_=kind)


def _short(run: Run) -> str:
    return run.commit[:8] if run.commit else ""


def _bars(speeds: Mapping[str, float]) -> Element:
    longest = max(speeds.values())
    height, left, width = 26, 78, 460
    bars = []
    for i, (name, value) in enumerate(speeds.items()):
        y = i * height
        length = (width - left - 62) * value / longest
        bars += [
            element("text", name, x=left - 6, y=y + 17, text_anchor="end"),
            element(
                "rect",
                x=left,
                y=y + 4,
                width=f"{length:.1f}",
                height=height - 8,
                rx=2,
                class_="bar" if name in LADDER else "bar other",
            ),
            element("text", f"{value:,.0f}", x=f"{left + length + 6:.1f}", y=y + 17),
        ]
    spoken = ", ".join(f"{name} {value:,.0f}" for name, value in speeds.items())
    return element(
        "svg",
        element("title", f"GFLOPS at {PROBLEM}: {spoken}"),
        *bars,
        viewBox=f"0 0 {width} {height * len(speeds)}",
        role="img",
        class_="picture",
    )
