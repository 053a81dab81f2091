"""Tables for people, on standard output."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_table(table: "Table") -> "Console":
    """Print a table of which nothing is cut; what goes below it can be printed on the console that
    is returned. A file or a pipe, which has no width of its own, gets the table's; a terminal that
    is narrower gets several lines to a row."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    for column in table.columns:
        column.overflow = "fold"
    if not console.is_terminal:
        as_wide_as_it_is = console.options.update(max_width=10_000)
        needed = Measurement.get(console, as_wide_as_it_is, table).maximum
        console.width = max(console.width, needed)
    console.print(table)
    return console
