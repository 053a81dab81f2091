"""The heat map: every version on every problem, coloured by the share of cuBLAS's speed there."""

from xml.etree.ElementTree import Element

from ..checkout import LADDER
from . import cells
from .markup import element
from .results import CUBLAS, Run

DEEPEST = 0.75
"""The opacity of the colour at cuBLAS's speed and above, so that text on it stays readable."""


def section(run: Run) -> Element:
    speeds = run.figures.get("gflops", {})
    problems = list(dict.fromkeys(problem for _, problem in speeds))
    names = [name for name in (*LADDER, CUBLAS) if any((name, p) in speeds for p in problems)]
    if not names:
        content = element("p", "This run has no speeds.", class_="note")
    else:
        head = element("tr", cells.heading("Version"), *map(cells.heading, map(_spaced, problems)))
        rows = [
            element(
                "tr",
                cells.row_heading(name),
                *(_cell(run, name, problem) for problem in problems),
                data_version=name,
            )
            for name in names
        ]
        content = cells.table(
            "GFLOPS, and the share of cuBLAS's speed on the same problem", [head], rows, "heat"
        )
    return element(
        "section",
        element("h2", "Versions × shapes"),
        element(
            "p", "The deeper the colour, the closer to cuBLAS; an outline marks what beats it."
        ),
        content,
        id="shapes",
    )


def _spaced(problem: str) -> str:
    """With places where a heading may break."""
    return problem.replace("x", "×\u200b")


def _cell(run: Run, name: str, problem: str) -> Element:
    cell = cells.figure(run, "gflops", name, problem, form="{:,.0f}", label=problem)
    cell.set("data-problem", problem)
    ratio = run.ratio_to_cublas(name, problem)
    if ratio is not None and run.figure("gflops", name, problem) is not None:
        cell.set("style", f"--depth: {min(ratio, 1) * DEEPEST:.3f}")
        if name != CUBLAS:
            cell.append(element("small", f"{ratio:.0%}"))
        if ratio > 1:
            cell.set("class", "figure beats")
    return cell
