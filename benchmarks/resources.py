"""asv benchmarks: what every version needs of an SM; on any machine.

The commit's own kernels are compiled, and the compiler's log is read with the checkout's parser.
Other compilers allocate registers differently: the series are n/a unless NVRTC is the pinned one,
so that they change with the kernels alone.
"""

import importlib.metadata
from collections.abc import Callable, Container, Sequence
from functools import cache
from typing import Any

from . import child
from .checkout import LADDER, load, pinned_version
from .series import metric, require_measured, series

ARCHITECTURES = ("sm_80", "sm_89", "sm_90")  # what the gate compares
GENERATIONS = load("occupancy").GENERATIONS
_capability_of = load("releases").capability_of
_COMPILER, _BINDING = "nvidia-cuda-nvrtc", "cuda-bindings"
_TIMEOUT_SECONDS = 300.0

Records = dict[str, child.Record]


class Resources:
    """Version and architecture to registers per thread, spilled bytes per thread and bytes of
    static shared memory per block: what the compiler reports, so without what a launch adds."""

    params = (list(LADDER), list(GENERATIONS))
    param_names = ("version", "arch")
    timeout = 1800.0  # seconds

    def setup_cache(self) -> Records:
        """Compile every version for every architecture."""
        keys = [key_of(version, arch) for version in LADDER for arch in GENERATIONS]
        return child.collect_at_once("resources", [], keys, _TIMEOUT_SECONDS)

    def setup(self, records: Records, version: str, arch: str) -> None:
        require_measured(records[key_of(version, arch)])

    @series(unit="registers", version="1")
    def track_registers(self, records: Records, version: str, arch: str) -> int:
        return int(metric(records[key_of(version, arch)], "registers"))

    @series(unit="bytes", version="1")
    def track_spill_bytes(self, records: Records, version: str, arch: str) -> int:
        return int(metric(records[key_of(version, arch)], "spill_bytes"))

    @series(unit="bytes", version="1")
    def track_shared_bytes(self, records: Records, version: str, arch: str) -> int:
        return int(metric(records[key_of(version, arch)], "shared_bytes"))


def answer(
    args: Sequence[str], keys: Sequence[str], emit: Callable[[str, child.Record], None]
) -> None:
    """What the child does: compile the installed package's kernels."""
    import sgemm

    parse = load("ptxas").parse
    for key in keys:
        version, arch = key.split()
        if reason := why_not_compared(sgemm.LADDER, version, arch):
            emit(key, {"skip": reason})
            continue
        try:
            emit(key, parse(sgemm.compile(version, arch=arch).log)._asdict())
        except (sgemm.SgemmError, ValueError) as error:
            emit(key, {"error": str(error)})


def key_of(version: str, arch: str) -> str:
    """What the record of a version on an architecture is called."""
    return f"{version} {arch}"


def why_not_compared(ladder: Container[str], version: str, arch: str) -> str | None:
    """Why there is nothing to record of a version of the installed package; None if there is."""
    if version not in ladder:
        return f"this commit has no {version}"
    return why_not_run(LADDER[version], arch) or _other_compiler()


def why_not_run(version: Any, arch: str) -> str | None:
    """Why GPUs of an architecture cannot run what an entry of a ladder is; None if they can."""
    if _capability_of(arch) < (oldest := version.min_compute_capability):
        return f"{version.name} needs compute capability {'{}.{}'.format(*oldest)}"
    return None


def shared_bytes_of_block(needs: Any, version: Any) -> int:
    """Static shared memory, as the compiler reports it, and what the launch adds."""
    # Commits from before the first version that has some say nothing of dynamic shared memory.
    return int(needs.shared_bytes + getattr(version, "dynamic_shared_bytes", 0))


@cache
def _other_compiler() -> str | None:
    """Why the installed compiler does not count; None if it is the pinned one."""
    pinned = pinned_version(_COMPILER)
    try:
        installed, binding = map(importlib.metadata.version, (_COMPILER, _BINDING))
    except importlib.metadata.PackageNotFoundError as error:
        return f"{error.name} is not installed"
    if installed != pinned:
        return f"{_COMPILER} is {installed}, not {pinned}"
    # The binding loads the NVRTC of its own CUDA major, whatever else is installed.
    major = binding.split(".")[0]
    return None if major == pinned.split(".")[0] else f"{_BINDING} is for CUDA {major}"
