"""The parts of docs/errors.md that follow from the package: which CUDA release knows which GPU, and
every cause with its repair. ``python -m benchmarks.readme`` writes them there."""

import re
from collections.abc import Iterable, Sequence
from typing import Any


def blocks() -> dict[str, str]:
    """The text between each pair of markers, by its name."""
    from sgemm import causes  # not above: asv imports this module beside a commit that lacks it

    machine = [cause for cause in vars(causes).values() if isinstance(cause, causes.Cause)]
    machine.remove(causes.OTHER_CUDA_ERROR)
    return {
        "architectures": _architectures(),
        "drivers": _drivers(),
        "machine": _causes(machine),
        "cuda": _causes([*causes.CUDA_ERRORS.values(), causes.OTHER_CUDA_ERROR]),
    }


def _architectures() -> str:
    from sgemm.releases import FIRST_RELEASE, LAST_RELEASE, dotted, family

    rows = []
    for capability, first in FIRST_RELEASE.items():
        last = LAST_RELEASE.get(capability)
        until = f"{dotted(last)}, dropped by {last[0] + 1}.0" if last else "still"
        arch = "`sm_{}{}`".format(*capability)
        rows.append((dotted(capability), arch, family(capability), dotted(first), until))
    return _table(("compute capability", "", "GPUs", "from CUDA", "until CUDA"), rows)


def _drivers() -> str:
    from sgemm.releases import MINIMUM_DRIVER, SHIPPED_DRIVER, dotted

    rows = [
        (dotted(release), driver, MINIMUM_DRIVER[release[0]])
        for release, driver in SHIPPED_DRIVER.items()
    ]
    newest = max(SHIPPED_DRIVER)
    rows.append((f"later {newest[0]}.x", "newer", MINIMUM_DRIVER[newest[0]]))
    headings = ("CUDA", "`nvidia-smi` shows it from driver", "runs on driver, at least")
    return _table(headings, rows)


def _causes(found: Iterable[Any]) -> str:
    rows = [
        [re.sub(r"\{(\w+)\}", r"*\1*", text) for text in (cause.seen, cause.why, cause.repair)]
        for cause in found
    ]
    return _table(("what is seen", "cause", "repair"), rows)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
