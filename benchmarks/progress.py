"""How far a command is, on standard error, and gone in the end."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def progress(steps: Iterable[T], what: str = "measuring", total: int | None = None) -> Iterable[T]:
    """The steps, each told when it is taken; ``total`` of them where they have no length."""
    from rich.console import Console
    from rich.progress import track

    return track(steps, what, total=total, console=Console(stderr=True), transient=True)
