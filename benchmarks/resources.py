"""asv benchmarks: what every version needs of an SM; on any machine.

The commit's own kernels are compiled, and the compiler's log is read with the checkout's parser.
Other compilers allocate registers differently: the series are n/a unless NVRTC is the pinned one,
so that they change with the kernels alone.
"""

import importlib.metadata
from collections.abc import Callable, Sequence

from . import child
from .checkout import LADDER, load, pinned_version
from .series import metric, require_measured, series

ARCHITECTURES = ("sm_80", "sm_89", "sm_90")
_COMPILER = "nvidia-cuda-nvrtc"
_TIMEOUT_SECONDS = 300.0

Records = dict[str, child.Record]


class Resources:
    """Version and architecture to registers per thread, spilled bytes per thread and bytes of
    static shared memory per block."""

    params = (list(LADDER), list(ARCHITECTURES))
    param_names = ("version", "arch")
    timeout = 1800.0  # seconds

    def setup_cache(self) -> Records:
        """Compile every version for every architecture."""
        keys = [_key(version, arch) for version in LADDER for arch in ARCHITECTURES]
        return child.collect("resources", [], keys, _TIMEOUT_SECONDS)

    def setup(self, records: Records, version: str, arch: str) -> None:
        require_measured(records[_key(version, arch)])

    @series(unit="registers", version="1")
    def track_registers(self, records: Records, version: str, arch: str) -> int:
        return int(metric(records[_key(version, arch)], "registers"))

    @series(unit="bytes", version="1")
    def track_spill_bytes(self, records: Records, version: str, arch: str) -> int:
        return int(metric(records[_key(version, arch)], "spill_bytes"))

    @series(unit="bytes", version="1")
    def track_shared_bytes(self, records: Records, version: str, arch: str) -> int:
        return int(metric(records[_key(version, arch)], "shared_bytes"))


def answer(
    args: Sequence[str], keys: Sequence[str], emit: Callable[[str, child.Record], None]
) -> None:
    """What the child does: compile the installed package's kernels."""
    import sgemm

    parse = load("ptxas").parse
    other_compiler = _other_compiler()
    for key in keys:
        version, arch = key.split()
        reason = None if version in sgemm.LADDER else f"this commit has no {version}"
        if skip := reason or other_compiler:
            emit(key, {"skip": skip})
            continue
        try:
            emit(key, parse(sgemm.compile(version, arch=arch).log)._asdict())
        except (sgemm.SgemmError, ValueError) as error:
            emit(key, {"error": str(error)})


def _key(version: str, arch: str) -> str:
    return f"{version} {arch}"


def _other_compiler() -> str | None:
    """Why the installed compiler does not count; None if it is the pinned one."""
    pinned = pinned_version(_COMPILER)
    try:
        installed = importlib.metadata.version(_COMPILER)
    except importlib.metadata.PackageNotFoundError:
        return f"{_COMPILER} is not installed"
    return None if installed == pinned else f"{_COMPILER} is {installed}, not {pinned}"
