"""asv benchmarks: what the machine code of every version consists of; on any machine.

The commit's own kernels are compiled, and their machine code is read with the checkout's reader.
The series are n/a where the compiler is not the pinned one, or there is no nvdisasm.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import SubprocessError
from tempfile import TemporaryDirectory
from typing import Any

from . import child
from .checkout import LADDER, load
from .resources import GENERATIONS, Records, key_of, shared_bytes_of_block, why_not_compared
from .series import metric, require_measured, series

_TIMEOUT_SECONDS = 600.0


class MachineCode:
    """Version and architecture to the share of FFMA among the instructions of the main loop, and to
    the theoretical occupancy: resident warps as a share of what an SM could hold."""

    params = (list(LADDER), list(GENERATIONS))
    param_names = ("version", "arch")
    timeout = 1800.0  # seconds

    def setup_cache(self) -> Records:
        """Compile and read every version for every architecture."""
        keys = [key_of(version, arch) for version in LADDER for arch in GENERATIONS]
        return child.collect_at_once("machine_code", [], keys, _TIMEOUT_SECONDS)

    def setup(self, records: Records, version: str, arch: str) -> None:
        require_measured(records[key_of(version, arch)])

    @series(unit="share of instructions", version="1", higher_is_better=True)
    def track_ffma_share(self, records: Records, version: str, arch: str) -> float:
        return float(metric(records[key_of(version, arch)], "ffma_share"))

    @series(unit="share of warps", version="1", higher_is_better=True)
    def track_occupancy(self, records: Records, version: str, arch: str) -> float:
        return float(metric(records[key_of(version, arch)], "occupancy"))


def answer(
    args: Sequence[str], keys: Sequence[str], emit: Callable[[str, child.Record], None]
) -> None:
    """What the child does: compile the installed package's kernels and read what comes out."""
    import sgemm

    disassembler = load("sass").find_disassembler()
    no_disassembler = None if disassembler else "nvidia-cuda-nvdisasm is not installed"
    for key in keys:
        version, arch = key.split()
        if reason := why_not_compared(sgemm.LADDER, version, arch) or no_disassembler:
            emit(key, {"skip": reason})
            continue
        try:
            compiled = sgemm.compile(version, arch=arch)
            emit(key, _read(compiled, disassembler, arch, sgemm.LADDER[version]))
        except (sgemm.SgemmError, SubprocessError, ValueError) as error:
            emit(key, {"error": str(error)})


def _read(compiled: Any, disassembler: str, arch: str, version: Any) -> child.Record:
    sass, limits = load("sass"), load("occupancy")
    with TemporaryDirectory() as folder:
        cubin = Path(folder, "cubin")
        cubin.write_bytes(compiled.cubin)
        instructions = sass.parse(sass.disassemble(disassembler, cubin))
    needs = load("ptxas").parse(compiled.log)
    shared_bytes = shared_bytes_of_block(needs, version)
    fits = limits.occupancy(
        limits.multiprocessor(arch), version.threads, needs.registers, shared_bytes
    )
    loop = sass.count(sass.main_loop(instructions))
    return {"ffma_share": loop.ffma_share, "occupancy": fits.share}
