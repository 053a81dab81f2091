"""Compiles what is going to be timed, all versions at once, and leaves it in the package's cache.

The process that measures would compile one after the other, each at its first launch.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from . import child
from .checkout import LADDER
from .gpu import Gpu

_TIMEOUT_SECONDS = 300.0


def run(device: Gpu) -> None:
    """Compile for a GPU. What does not compile says so when it is measured."""
    child.collect_at_once("compile_ahead", [device.arch], list(LADDER), _TIMEOUT_SECONDS)


def answer(
    args: Sequence[str], versions: Sequence[str], emit: Callable[[str, child.Record], None]
) -> None:
    """What the child does: compile the installed package's versions for ``args[0]``."""
    import sgemm

    (arch,) = args
    for name in versions:
        with suppress(sgemm.SgemmError):
            sgemm.compile(name, arch=arch)
        emit(name, {})
