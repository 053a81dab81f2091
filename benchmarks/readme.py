"""``python -m benchmarks.readme`` writes what is measured or follows from the code into README.md
and docs/.

It fills what stands between pairs of markers, from the ladder and from what ``python -m benchmarks
table --json``, ``calibrate --json`` and ``sweep --json`` printed on the reference machine. The rest
of those files is written by hand.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import errors_page
from .checkout import LADDER, ROOT
from .distributions import clopper_pearson

CALIBRATION = Path("docs", "calibration-nvidia-h200.json")
TABLE = Path("docs", "table-nvidia-h200.json")  # not in results/: asv reads every .json there
SWEEP = Path("docs", "sweep-nvidia-h200.json")
NOT_MEASURED = "Not measured yet."

Row = Mapping[str, Any]


def generate(root: Path = ROOT) -> dict[Path, str]:
    """The files that hold generated parts: path to the text that each should have.

    Raises ValueError for a file without its markers, and for a table with a wrong result.
    """
    table = root / TABLE
    document = json.loads(table.read_text()) if table.exists() else {}
    environment = document.get("environment")
    rows = {row["version"]: row for row in document.get("rows", ())}
    if wrong := [name for name, row in rows.items() if row["verdict"] != "right"]:
        raise ValueError(f"{table}: the results of {', '.join(wrong)} are wrong")

    readme = root / "README.md"
    blocks = {"ladder": _ladder(root, rows, environment), "calibration": _calibration(root)}
    files = {readme: _fill(readme, blocks)}
    for name in LADDER:
        chapter = root / "docs" / f"{name}.md"
        if chapter.exists():
            files[chapter] = _fill(chapter, {"measured": _measured(name, rows, environment)})
    sweep = root / "docs" / "sweep.md"
    if sweep.exists():
        files[sweep] = _fill(sweep, {"sweep": _sweep(root)})
    errors = root / "docs" / "errors.md"
    if errors.exists():
        files[errors] = _fill(errors, errors_page.blocks())
    return files


def _fill(path: Path, blocks: Mapping[str, str]) -> str:
    """The file's text with each block between the markers of its name."""
    text = path.read_text()
    for name, content in blocks.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        before, found_begin, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found_begin and found_end):
            raise ValueError(f"{path}: the markers {begin.strip()} and {end} are missing")
        text = f"{before}{begin}{content}\n{end}{after}"
    return text


def _ladder(root: Path, rows: Mapping[str, Row], environment: Row | None) -> str:
    lines = [
        "| version | what changes | GFLOPS | gain | of FFMA peak | of cuBLAS "
        "| error / bound | article, GFLOPS |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, version in LADDER.items():
        chapter = f"docs/{name}.md"
        link = f"[{name}]({chapter})" if (root / chapter).exists() else name
        article = _number(version.article_gflops, ",")
        lines.append(_line(link, version.change, rows.get(name, {}), article))
    lines += [_line("", row["title"], row, "") for name, row in rows.items() if name not in LADDER]
    caption = NOT_MEASURED
    if environment:
        caption = (
            f"{_where(environment)}, all in one interleaved run of `python -m benchmarks table`; "
            f"{_commit(environment)}driver {environment['driver']}, CUDA {environment['cuda']}, "
            f"NVRTC {environment['nvrtc']}, cuBLAS {environment['cublas']}. "
            f"Samples and clocks: [{TABLE.name}]({TABLE.as_posix()})."
        )
    return "\n".join([*lines, "", caption])


def _line(link: str, change: str, row: Row, article: str) -> str:
    cells = (
        link,
        change,
        _number(row.get("gflops"), ",.0f"),
        _number(row.get("gain"), ".2f", "×"),
        _number(row.get("share_of_peak"), ".1%"),
        _number(row.get("ratio_to_cublas"), ".1%"),
        _number(row.get("error_over_bound"), ".2g"),
        article,
    )
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


def _measured(name: str, rows: Mapping[str, Row], environment: Row | None) -> str:
    if environment is None or name not in rows:
        return NOT_MEASURED
    row = rows[name]
    names = list(LADDER)
    before = names[names.index(name) - 1]
    gain = f", {row['gain']:.2f} times {before}" if row["gain"] is not None else ""
    return (
        f"{_where(environment)}: **{row['gflops']:,.0f} GFLOPS**{gain}; "
        f"{row['share_of_peak']:.1%} of the FFMA peak and {row['ratio_to_cublas']:.1%} of cuBLAS "
        "FP32 in the same run."
    )


def _calibration(root: Path) -> str:
    """The gate's error rates, of the versions that were slowed down, problem by problem."""
    path = root / CALIBRATION
    if not path.exists():
        return NOT_MEASURED
    document = json.loads(path.read_text())
    planted = [row for row in document["rows"] if row["share"]]
    versions = sorted({row["version"] for row in planted})
    shares = sorted({row["share"] for row in planted})
    factor = min(planted[0]["asv_continuous"], key=float)
    lines = [
        "| problem | identical code |"
        + "".join(f" {share:.1%} slower |" for share in shares)
        + f" asv, identical | asv, {shares[-1]:.0%} slower |",
        "|---|" + "--:|" * (len(shares) + 3),
    ]
    problems = dict.fromkeys(row["problem"] for row in planted)
    for problem in sorted(problems, key=lambda name: int(name.split("x")[0])):
        rows = [r for r in document["rows"] if r["problem"] == problem and r["version"] in versions]

        def rate(share: float, *, asv: bool = False, rows: list[Any] = rows) -> str:
            found = [row for row in rows if row["share"] == share]
            return _rate([r["asv_continuous"][factor] if asv else r["slower"] for r in found])

        cells = [rate(share) for share in (0, *shares)]
        cells += [rate(0, asv=True), rate(shares[-1], asv=True)]
        lines.append(f"| {problem.replace('x', '×')} | {' | '.join(cells)} |")
    gates, sessions = document["gates"], document["environment"]
    runs = _listed(
        "and",
        [
            f"{run['processes']} processes on GPU {run['gpu_id']} ({run['date']})"
            for run in sessions
        ],
    )
    sizes = _listed("or", sorted({run["benchmarks"] for run in sessions}))
    about = (
        f"Comparisons that were called slower, of {_listed('and', versions)} together, with the "
        f"exact 95 % interval. asv is `asv continuous --factor {factor}` on the same samples. "
        f"Whole gates of identical code, the suite's {sizes} benchmarks each: "
        f"{_rate([gates['slower']])} called slower, {_rate([gates['undecided']])} ambiguous. "
        f"{sessions[0]['gpu']}, {runs}; every two of a run are compared. "
        f"All rates: [{CALIBRATION.name}]({CALIBRATION.as_posix()})."
    )
    return "\n".join([*lines, "", about])


def _listed(word: str, items: Sequence[Any]) -> str:
    """The items in words, ``word`` before the last one."""
    *others, last = map(str, items)
    return f"{', '.join(others)} {word} {last}" if others else last


def _sweep(root: Path) -> str:
    """Every shape's figures, and the summary.

    Raises ValueError for a wrong result.
    """
    path = root / SWEEP
    if not path.exists():
        return NOT_MEASURED
    document = json.loads(path.read_text())
    summary, where = document["summary"], document["environment"]
    up_to = summary.get("up_to", {})  # a sweep need not have measured any
    lines = [
        "| M×N×K | version | blocks | shared tiles | GFLOPS | cuBLAS | ratio |"
        + "".join(f" up to {last} |" for last in up_to),
        "|---|---|--:|--:|--:|--:|--:|" + "--:|" * len(up_to),
    ]
    for row in document["rows"]:
        if row["wrong"]:
            raise ValueError(f"{path}: {row['problem']}: {row['wrong']}")
        figures = f"{row['gflops']:,.0f} | {row['cublas_gflops']:,.0f}"
        ratios = [row, *(row["up_to"][last] for last in up_to)]
        lines.append(
            f"| {row['problem'].replace('x', '×')} | {row['version']} | {row['blocks']} "
            f"| {row['shared_tiles']} | {figures} "
            + "".join(f"| {one['ratio_to_cublas']:.3f} " for one in ratios)
            + "|"
        )
    about = (
        f"{where['gpu']}, {_commit(where)}driver {where['driver']}, CUDA {where['cuda']}, "
        f"NVRTC {where['nvrtc']}, cuBLAS {where['cublas']}. "
        f"Geometric mean of the ratios {summary['geometric_mean']:.3f}, the least "
        f"{summary['least']:.3f} at {summary['least_problem'].replace('x', '×')}. "
        + "".join(
            f"Without the versions after {last}: {mean:.3f}. " for last, mean in up_to.items()
        )
        + f"Samples: [{SWEEP.name}]({SWEEP.name})."
    )
    return "\n".join([*lines, "", about])


def _rate(rates: Sequence[Mapping[str, Any]]) -> str:
    hits, trials = (sum(rate[name] for rate in rates) for name in ("hits", "trials"))
    if not trials:
        return ""
    low, high = clopper_pearson(hits, trials)
    return f"{hits}/{trials} ({low:.1%}–{high:.1%})"


def _commit(environment: Row) -> str:
    """Which commit was measured, where that was noted."""
    commit = environment.get("checkout")
    return f"commit {commit}, " if commit else ""


def _where(environment: Row) -> str:
    return f"{environment['gpu']}, {environment['problem'].replace('x', '×')}"


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m benchmarks.readme",
        description="Writes the measured figures into README.md and docs/.",
    ).parse_args()
    for path, text in generate().items():
        if path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
