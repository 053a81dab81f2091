"""What the compiler made of a version: registers, occupancy, and what its machine code consists of.

Needs NVRTC and nvdisasm, and neither a GPU nor a CUDA toolkit. ``CLAIMS`` are the sentences of the
ladder that machine code proves or refutes.
"""

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache as cached
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from . import cache, causes, compiler, sass
from .errors import CompileError, MissingError
from .ladder import Version
from .occupancy import Occupancy, multiprocessor, occupancy
from .sass import Counts, Instruction
from .versions import resolve


@dataclass(frozen=True)
class Inspection:
    """A version compiled for one architecture.

    ``registers`` and ``spill_bytes`` (stores and loads) are per thread, ``shared_bytes`` of static
    and ``dynamic_shared_bytes`` of dynamic shared memory per block.
    ``loop`` counts one pass through the main loop, ``producer_loop`` one of warps that only copy,
    where there are some, and ``kernel`` all instructions once.
    ``dispatch_cycles`` are the fewest that a pass through the main loop takes one scheduler,
    ``warp_cycles`` the fewest that it takes one warp, and ``pauses`` the instructions and cycles
    around each barrier of the block in which a warp multiplies nothing. ``load_distances`` are the
    smallest and the median number of instructions from a load from shared memory to the first use
    of what it loads. ``occupancy`` is None where the architecture's limits are not known.
    """

    version: str
    arch: str
    nvrtc: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    dynamic_shared_bytes: int
    occupancy: Occupancy | None
    loop: Counts
    producer_loop: Counts | None
    kernel: Counts
    dispatch_cycles: int
    warp_cycles: int
    pauses: tuple[tuple[int, int], ...]
    load_distances: tuple[int, float] | None


def inspect(version: str | Version, arch: str) -> Inspection:
    """Compile a version for ``arch`` and examine it; kept on disk.

    Raises what ``compiler.compile`` raises, MissingError where there is no nvdisasm, and
    CompileError where it cannot read the machine code.
    """
    version = resolve(version)
    compiler.require_runs_on(version, arch)  # before what NVRTC says of the architecture
    compiled = compiler.compile(version, arch)
    tool = _disassembler()
    status = Path(tool).stat()

    def build(path: Path) -> None:
        path.write_text(json.dumps(_examine(_disassemble(compiled.cubin))))

    tool += f" {status.st_size} {status.st_mtime_ns}"
    key: tuple[str | bytes, ...] = ("inspection", _reader(), tool, compiled.cubin)
    found = json.loads(cache.fetch(".json", key, build).read_text(encoding="utf-8"))
    sm = multiprocessor(arch)
    shared_bytes = compiled.shared_bytes + version.dynamic_shared_bytes
    needs = version.threads, compiled.registers, shared_bytes
    return Inspection(
        version=version.name,
        arch=arch,
        nvrtc=compiled.nvrtc,
        registers=compiled.registers,
        spill_bytes=compiled.spill_bytes,
        shared_bytes=compiled.shared_bytes,
        dynamic_shared_bytes=version.dynamic_shared_bytes,
        occupancy=None if sm is None else occupancy(sm, *needs),
        loop=_counts(found["loop"]),
        producer_loop=found["producer_loop"] and _counts(found["producer_loop"]),
        kernel=_counts(found["kernel"]),
        dispatch_cycles=found["dispatch_cycles"],
        warp_cycles=found["warp_cycles"],
        pauses=tuple((instructions, cycles) for instructions, cycles in found["pauses"]),
        load_distances=found["load_distances"] and tuple(found["load_distances"]),
    )


def annotated_loop(version: str | Version, arch: str) -> list[tuple[Instruction, str]]:
    """One pass through the main loop of a version, in the order in which it runs, each instruction
    with what there is to say about it."""
    loop = sass.main_loop(_disassemble(compiler.compile(version, arch).cubin))
    distances = sass.load_distances(loop)
    annotated = []
    for position, (instruction, cycles) in enumerate(
        zip(loop, sass.dispatch_cycles(loop), strict=True)
    ):
        note = instruction.kind
        if position in distances:
            note += f", first used {distances[position]} instructions later"
        if cycles > 1:
            note = f"waits {cycles - 1} cycle{'s' * (cycles > 2)} for operands of one bank"
        annotated.append((instruction, note))
    return annotated


def _examine(instructions: Sequence[Instruction]) -> dict[str, Any]:
    loop = sass.main_loop(instructions)
    producers = sass.producer_loop(instructions)
    distances = sass.load_distances(loop).values()
    return {
        "loop": asdict(sass.count(loop)),
        "producer_loop": asdict(sass.count(producers)) if producers else None,
        "kernel": asdict(sass.count(instructions)),
        "dispatch_cycles": sum(sass.dispatch_cycles(loop)),
        "warp_cycles": sum(sass.issue_gaps(loop)),
        "pauses": sass.pauses(loop),
        "load_distances": [min(distances), median(distances)] if distances else None,
    }


def _counts(found: dict[str, Any]) -> Counts:
    """Counts from JSON, whose keys are text."""
    for name, value in found.items():
        if isinstance(value, dict):
            found[name] = {int(bits): number for bits, number in value.items()}
    return Counts(**found)


@cached
def _reader() -> str:
    """The text of what reads the machine code: what it found before it was changed is outdated."""
    return Path(sass.__file__).read_text(encoding="utf-8")


@cached
def _disassembler() -> str:
    tool = sass.find_disassembler()
    if tool is None:
        raise MissingError(causes.NVDISASM_MISSING)
    return tool


def _disassemble(cubin: bytes) -> list[Instruction]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "cubin")
        path.write_bytes(cubin)
        try:
            return sass.parse(sass.disassemble(_disassembler(), path))
        except ValueError as error:
            raise CompileError(f"{error}; a kernel is called {sass.KERNEL}") from error
        except subprocess.CalledProcessError as error:
            said = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise CompileError(f"nvdisasm cannot read the machine code: {said}") from error


@dataclass(frozen=True)
class Claim:
    """A sentence of the ladder that machine code proves or refutes.

    ``concerns`` says whether it is about a version, ``holds`` whether an inspection bears it out.
    """

    sentence: str
    concerns: Callable[[Version], bool]
    holds: Callable[[Version, Inspection], bool]


def _every(version: Version) -> bool:
    return True


def _named(*names: str) -> Callable[[Version], bool]:
    return lambda version: version.name in names


CLAIMS = (
    Claim(
        "No register is spilled to memory.",
        _every,
        lambda _, found: found.spill_bytes == found.kernel.local_accesses == 0,
    ),
    Claim(
        "Every multiply-add of the main loop is one FFMA, none is an FMUL and an FADD.",
        _every,
        lambda _, found: found.loop.ffma > 0 and found.loop.unfused == 0,
    ),
    Claim(
        "The main loop needs two loads from global memory for each multiply-add.",
        _named("v0", "v1"),
        lambda _, found: found.loop.global_loads == {32: 2 * found.loop.ffma},
    ),
    Claim(
        "The tiles of A and B are copied float4 by float4: the main loop reads global memory 128 "
        "bits wide and never narrower.",
        _named("v2", "v3", "v4"),
        lambda _, found: set(found.loop.global_loads | found.loop.asynchronous_copies) == {128},
    ),
    Claim(
        "A version with a float4 path reads global memory 128 bits wide or in bulk.",
        lambda version: version.float4,
        lambda _, found: (
            128 in found.kernel.global_loads | found.kernel.asynchronous_copies
            or found.kernel.bulk_copies > 0
        ),
    ),
    Claim(
        "v2 takes from shared memory a float of B for each multiply-add, and four of A for four.",
        _named("v2"),
        lambda _, found: (
            found.loop.shared_loads == {32: found.loop.ffma, 128: found.loop.ffma // 4}
        ),
    ),
    Claim(
        "A thread reads its micro-tile's rows and columns for all its multiply-adds once.",
        lambda version: version.micro_tile != (1, 1),
        lambda version, found: (
            set(found.loop.shared_loads) == {128}
            and found.loop.shared_loads[128] * 4
            <= found.loop.ffma * sum(1 / size for size in version.micro_tile)
        ),
    ),
    Claim(
        "Two barriers per step: the tiles are complete, and nobody reads them any more.",
        _named("v2", "v3"),
        lambda _, found: found.loop.barriers == 2,
    ),
    Claim(
        "cp.async copies the next tiles (LDGSTS), not through registers; one barrier per step.",
        _named("v4"),
        lambda _, found: (
            bool(found.loop.asynchronous_copies)
            and not found.loop.global_loads
            and not found.loop.shared_stores
            and found.loop.barriers == 1
        ),
    ),
)


def refuted(version: Version, found: Inspection) -> list[str]:
    """The sentences about a version that its machine code does not bear out."""
    return [
        claim.sentence
        for claim in CLAIMS
        if claim.concerns(version) and not claim.holds(version, found)
    ]
