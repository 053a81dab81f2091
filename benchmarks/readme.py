"""``python -m benchmarks.readme`` writes the measured figures into README.md and docs/.

It fills what stands between pairs of markers, from the ladder and from what ``python -m benchmarks
table --json`` printed on the reference machine. The rest of those files is written by hand.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checkout import LADDER, ROOT

TABLE = Path("docs", "table-nvidia-h200.json")  # not in results/: asv reads every .json there
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
    files = {readme: _fill(readme, "ladder", _ladder(root, rows, environment))}
    for name in LADDER:
        chapter = root / "docs" / f"{name}.md"
        if chapter.exists():
            files[chapter] = _fill(chapter, "measured", _measured(name, rows, environment))
    return files


def _fill(path: Path, name: str, content: str) -> str:
    """The file's text with ``content`` between the markers of that name."""
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    before, found_begin, rest = path.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"{path}: the markers {begin.strip()} and {end} are missing")
    return f"{before}{begin}{content}\n{end}{after}"


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
            f"driver {environment['driver']}, CUDA {environment['cuda']}, "
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
