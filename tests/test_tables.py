"""How the benchmarks' commands print tables."""

import re

import pytest
from rich.table import Table

from benchmarks.tables import print_table

NAMES = "4096x4096x4096 A+1", "4096x4096x4096 B column-major"
FIGURES = "37,781", "0/642 (0.0%–0.6%)"


@pytest.fixture
def table():
    table = Table("problem", title="What was measured", caption="a caption " * 30)
    for i in range(6):
        table.add_column(f"figure {i}", justify="right")
    for name, figure in zip(NAMES, FIGURES, strict=True):
        table.add_row(name, *[figure] * 6)
    return table


@pytest.mark.parametrize("columns", ["20", "80", "300"])
def test_a_pipe_gets_whole_rows(table, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    print_table(table)
    printed = capsys.readouterr().out
    for name, figure in zip(NAMES, FIGURES, strict=True):
        row = r"[│ ]+".join(map(re.escape, [name, *[figure] * 6]))
        assert re.search(f"^│ {row} +│$|^│ {row} │$", printed, re.MULTILINE), printed


@pytest.mark.parametrize(
    ("columns", "width"), [(130, 130), (103, 103), (88, 88), (40, 88), (300, 153)]
)
def test_a_terminal_gets_lines_that_fit_but_every_word_whole(
    table, capsys, monkeypatch, columns, width
):
    """A row takes 88 columns where it is folded after each word, 153 where it is not."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")  # which rich takes for a terminal
    print_table(table)
    printed = capsys.readouterr().out
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in printed.splitlines()]
    rows = [line for line in lines if line.startswith("│")]
    assert {len(line) for line in rows} == {width}
    cells = [line.split("│")[1:-1] for line in rows]
    for i, texts in enumerate([NAMES, *[FIGURES] * 6]):
        words = " ".join(row[i] for row in cells).split()
        assert words == " ".join(texts).split()
