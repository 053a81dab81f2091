"""What the commands print: one JSON document for programs, tables and progress bars for people."""

import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the functions that print import rich themselves: JSON goes without
    from rich.console import Console
    from rich.progress import Progress
    from rich.text import Text

_STYLES = {
    "ok": "green",
    "right": "green",
    "absent": "dim",
    "warning": "yellow",
    "problem": "red",
    "wrong": "red",
}


def print_json(
    command: str, environment: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Print ``{schema, command, environment, rows}``; a figure of inf or NaN becomes null."""
    document = {
        "schema": f"sgemm/{command}/1",
        "command": command,
        "environment": environment,
        "rows": [{key: _jsonable(value) for key, value in row.items()} for row in rows],
    }
    print(json.dumps(document, indent=2, allow_nan=False))  # in ASCII, which every stdout takes


def base_environment() -> dict[str, Any]:
    """What every document says about where it was made."""
    try:
        version = importlib.metadata.version("sgemm")
    except importlib.metadata.PackageNotFoundError:
        version = None  # a bare checkout
    return {
        "sgemm": version,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table: figures to the right, None as a dash."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading, *cells in zip(headings, *rows, strict=True):
        figures = all(cell is None or isinstance(cell, int | float) for cell in cells)
        table.add_column(heading, justify="right" if figures else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    _console().print(table)


def print_notes(notes: Mapping[str, str]) -> None:
    """Print paragraphs, each after its heading and indented."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    for heading, text in notes.items():
        grid.add_row(Text(heading, style="bold"), Text(text))
    _console().print(grid)


def progress() -> "Progress":
    """A progress bar on standard error, where that is a terminal; it leaves no trace."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _console() -> "Console":
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # BrokenPipeError, where rich would end the process with status 1

    console = PipeConsole()
    if not console.is_terminal:
        console.width = 100  # a file or a pipe has no width of its own
    return console


def _jsonable(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> "Text":
    from rich.text import Text

    if value is None:
        return Text("–", style="dim")
    if isinstance(value, float):
        return Text(f"{value:.2g}")
    return Text(str(value), style=_STYLES.get(str(value), ""))
