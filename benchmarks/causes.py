"""Why one build of a version is slower than another, as far as machine code and counters tell."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import profile, sass
from .builds import Build
from .child import Record

PROFILE_TIMEOUT_SECONDS = 120.0


def why_slower(version: str, pair: Sequence[Build], fingerprints: Sequence[Record]) -> str:
    """In Markdown, of base and head: the instructions that differ and, where Nsight Compute is
    installed, what the warps of both wait for."""
    before, after = fingerprints
    parts = []
    for name, cubin in after["cubins"].items():
        old, new = Path(before["cubins"][name]), Path(cubin)
        if old.read_bytes() != new.read_bytes():
            parts += [f"{name}: {sass.difference(old, new)}", ""]
    if not parts:
        parts += [
            "The machine code is the same: what differs is on the host, or in the launch.",
            "",
        ]
    if ncu := shutil.which("ncu"):
        parts += _profiles(ncu, version, pair)
    return "\n".join(parts).rstrip()


def _profiles(ncu: str, version: str, pair: Sequence[Build]) -> list[str]:
    try:
        rows = [_profile(ncu, version, build) for build in pair]
    except profile.ProfilerError as error:
        return [f"Nsight Compute gave no report: {error}"]
    reasons = list(dict.fromkeys(reason for row in rows for reason in list(row["stalls"])[:4]))
    figures = {
        "time, ms": [f"{row['seconds'] * 1e3:.3f}" for row in rows],
        "bottleneck": [row["bottleneck"] for row in rows],
        **{f"stalled: {r.replace('_', ' ')}": _percent(rows, "stalls", r) for r in reasons},
        **{f"busy: {p.replace('_', ' ')}": _percent(rows, "pipes", p) for p in rows[1]["pipes"]},
        **{p.replace("_", " "): _percent(rows, "rates", p) for p in rows[1]["rates"]},
    }
    return [
        f"Nsight Compute, {profile.PROBLEM.name.replace('x', '×')}:",
        "",
        "| | base | head |",
        "|---|--:|--:|",
        *(f"| {name} | {old} | {new} |" for name, (old, new) in figures.items()),
    ]


def _percent(rows: list[dict[str, Any]], group: str, name: str) -> list[str]:
    shares = [row[group].get(name) for row in rows]
    return ["" if share is None else f"{share:.1%}" for share in shares]


def _profile(ncu: str, version: str, build: Build) -> dict[str, Any]:
    kernels = profile.run_profiler(
        ncu,
        profile.METRICS,
        build.command("profile", [version], ["done"]),
        variables=build.variables,
        timeout=PROFILE_TIMEOUT_SECONDS,
    )
    return profile.row(version, profile.longest_kernel(kernels))
