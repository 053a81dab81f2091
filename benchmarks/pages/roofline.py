"""The roofline: each version's speed over its work per byte, below what the GPU can do."""

from collections.abc import Mapping
from math import ceil, floor, log10
from statistics import median
from xml.etree.ElementTree import Element

from ..checkout import LADDER
from .ladder import PROBLEM
from .markup import element
from .results import Run

WIDTH, HEIGHT = 460, 330
LEFT, RIGHT, TOP, BOTTOM = 68, 12, 14, 44
LINE = 14  # of text
FLOATS_PER_BYTE = 1 / 4


def intensity(version: str) -> float:
    """FLOP per byte that the version's blocks read from beyond their SM: M + N floats for the M·N
    multiply-adds of a tile."""
    m, n, _ = LADDER[version].tile
    return float(2 * m * n / (m + n) * FLOATS_PER_BYTE)


def peak(run: Run) -> float | None:
    """The rate of multiply-adds alone in that run, GFLOPS."""
    measured = run.figure("gflops", "FFMA peak", PROBLEM)
    if measured is not None:
        return measured
    peaks = [
        speed / share
        for (name, problem), share in run.figures.get("share_of_peak", {}).items()
        if share and (speed := run.figure("gflops", name, problem))
    ]
    return median(peaks) if peaks else None


def bandwidth(facts: Mapping[str, float]) -> float | None:
    """What the GPU's memory can deliver, GB/s: both edges of its clock move the bus's width."""
    if "memory_bus_bits" not in facts:
        return None
    return 2 * facts["max_memory_mhz"] * 1e6 * facts["memory_bus_bits"] / 8 / 1e9


def section(run: Run, table: Run | None) -> Element:
    """``table`` is the machine's interleaved run: it knows the GPU, and the peak where ``run`` has
    none."""
    speeds = {
        name: value for name in LADDER if (value := run.figure("gflops", name, PROBLEM)) is not None
    }
    content: list[Element]
    if speeds:
        own = peak(run)
        roof = own or (table and peak(table))
        memory = table and bandwidth(table.facts)
        content = [
            _picture(speeds, roof or None, memory or None, run.figure("gflops", "cublas", PROBLEM)),
            element(
                "p",
                "Across: FLOP per byte that a version's blocks read from beyond their SM, from its "
                "tile. Up: GFLOPS. A larger tile moves a version to the right; what is left below "
                "the roof is not a matter of bandwidth."
                + (
                    " The slope is the memory's bandwidth; the L2 cache delivers more."
                    if memory
                    else ""
                )
                + ("" if own or not roof else " The roof is that of the interleaved run."),
            ),
        ]
    else:
        content = [element("p", "This run has no speeds.", class_="note")]
    return element("section", element("h2", "Roofline"), *content, id="roofline")


def _picture(
    speeds: Mapping[str, float], roof: float | None, memory: float | None, cublas: float | None
) -> Element:
    xs = [intensity(name) for name in speeds]
    ys = [*speeds.values(), *(value for value in (roof, cublas) if value)]
    ridge = [roof / memory] if roof and memory else []
    x_from, x_to = floor(log10(min(xs))), ceil(log10(max([*xs, *ridge]) * 1.5))
    y_from, y_to = floor(log10(min(ys) / 1.5)), ceil(log10(max(ys)))

    def x(value: float) -> float:
        return LEFT + (log10(value) - x_from) / (x_to - x_from) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (log10(value) - y_from) / (y_to - y_from) * (HEIGHT - TOP - BOTTOM)

    def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Element:
        ends = {"x1": x(x1), "y1": y(y1), "x2": x(x2), "y2": y(y2)}
        return element("line", class_=kind, **{name: f"{at:.1f}" for name, at in ends.items()})

    def label(
        text: str, label_x: float, label_y: float, anchor: str, kind: str | None = None
    ) -> Element:
        place = {"x": f"{label_x:.1f}", "y": f"{label_y:.1f}"}
        return element("text", text, text_anchor=anchor, class_=kind, **place)

    left, right, bottom, top = 10.0**x_from, 10.0**x_to, 10.0**y_from, 10.0**y_to
    parts = []
    for exponent in range(x_from, x_to + 1):
        at = 10.0**exponent
        parts += [
            line(at, bottom, at, top, "grid"),
            label(f"{at:,g}", x(at), HEIGHT - 26, "middle"),
        ]
    for exponent in range(y_from, y_to + 1):
        at = 10.0**exponent
        parts += [
            line(left, at, right, at, "grid"),
            label(f"{at:,g}", LEFT - 5, y(at) + 4, "end"),
        ]
    described = [
        f"{name}: {speed:,.0f} GFLOPS at {intensity(name):.1f}" for name, speed in speeds.items()
    ]
    if roof:
        start = left
        if memory:
            start = max(left, roof / memory)
            foot = max(left, bottom / memory)
            parts.append(line(foot, foot * memory, start, roof, "roof"))
            described.append(f"memory: {memory:,.0f} GB/s")
        parts += [
            line(start, roof, right, roof, "roof"),
            label(f"FFMA peak {roof:,.0f}", x(right) - 4, y(roof) - 5, "end"),
        ]
        described.append(f"FFMA peak: {roof:,.0f} GFLOPS")
    if cublas:
        parts += [
            line(left, cublas, right, cublas, "cublas"),
            label(f"cuBLAS {cublas:,.0f}", x(left) + 6, y(cublas) + 14, "start"),
        ]
        described.append(f"cuBLAS: {cublas:,.0f} GFLOPS")
    lowest: dict[float, float] = {}  # label so far, by place across
    for name, speed in sorted(speeds.items(), key=lambda item: item[1], reverse=True):
        at_x, at_y = x(intensity(name)), y(speed)
        label_y = max(at_y + 4, lowest.get(at_x, 0) + LINE)
        lowest[at_x] = label_y
        parts += [
            element(
                "circle", cx=f"{at_x:.1f}", cy=f"{at_y:.1f}", r=5, class_="point", data_version=name
            ),
            label(name, at_x - 9, label_y, "end", "point-label"),
        ]
    across = "FLOP per byte from beyond the SM"
    parts.append(label(across, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "middle"))
    return element(
        "svg",
        element("title", "Roofline, FLOP per byte: " + "; ".join(described)),
        *parts,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        class_="picture",
    )
