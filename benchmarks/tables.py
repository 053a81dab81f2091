"""Tables for people, on standard output."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_table(table: "Table") -> "Console":
    """Print a table of which nothing is cut; what goes below it can be printed on the console that
    is returned. A file or a pipe, which has no width of its own, gets the table's; a terminal that
    is narrower gets several lines to a row, folded between words, and if it is too narrow for these
    folds the lines itself."""
    from rich.console import Console
    from rich.measure import Measurement, measure_renderables

    console = Console()
    unlimited = console.options.update(max_width=10_000)
    columns = table.columns
    words_and_lines = [  # the longest ones, of each column
        measure_renderables(console, unlimited, [column.header, *column.cells])
        for column in columns
    ]
    widths = [longest.minimum for longest in words_and_lines]
    lines = [longest.maximum for longest in words_and_lines]
    frame = Measurement.get(console, unlimited, table).maximum - sum(lines)
    if not console.is_terminal:
        console.width = max(console.width, frame + sum(lines))
    elif console.width < frame + sum(widths):
        table.padding = (0, 0)
        frame -= 2 * len(columns)
        console.width = max(console.width, frame + sum(widths))
    for _ in range(min(console.width - frame, sum(lines)) - sum(widths)):
        most_folded = max(range(len(columns)), key=lambda i: lines[i] / widths[i])
        widths[most_folded] += 1
    for column, width in zip(columns, widths, strict=True):
        column.width = width
    console.print(table)
    return console
