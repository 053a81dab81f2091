"""What ``python -m sgemm inspect`` prints."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from . import inspection, report
from .inspection import Inspection
from .ladder import Version
from .sass import Counts

NOTES = {
    "occupancy": "resident warps as a share of what an SM can hold, and what limits the blocks/SM",
    "operand waits": "cycles of a pass through the main loop in which multiply-adds wait for "
    "operands that lie in one register bank",
    "LDS to use": "instructions from a load from shared memory to the first use: fewest, median",
    "share": "of the instructions that are FFMA",
    "unfused": "multiply-adds that are an FMUL and an FADD",
    "LDG, LDS, LDGSTS": "loads from global memory, loads from shared memory and asynchronous "
    "copies from one to the other: number × bits of an access",
    "STS, bulk": "stores to shared memory; bulk copies",
    "barriers": "of the block, and mbarriers",
    "addresses": "instructions that calculate with integers, most of them for addresses and loops",
}


def row(version: Version, found: Inspection, loop: bool) -> dict[str, Any]:
    """An inspection for the JSON document; ``loop`` adds the annotated main loop."""
    content = asdict(found)
    content["loop"]["ffma_share"] = found.loop.ffma_share
    content["kernel"]["ffma_share"] = found.kernel.ffma_share
    content["refuted"] = inspection.refuted(version, found)
    if loop:
        content["main_loop"] = [
            {"address": instruction.address, "instruction": str(instruction), "note": note}
            for instruction, note in inspection.annotated_loop(version, found.arch)
        ]
    return content


def print_tables(inspections: Sequence[Inspection]) -> None:
    """The resources, the main loops and the whole kernels."""
    report.print_table(
        (
            *("", "arch", "registers", "spilled\nbytes", "shared\nbytes", "blocks\n/SM"),
            *("occu-\npancy", "limited by", "operand\nwaits", "LDS\nto use"),
        ),
        [
            (
                *(found.version, found.arch),
                *(found.registers, found.spill_bytes),
                found.shared_bytes + found.dynamic_shared_bytes,
                *_occupancy(found),
                found.dispatch_cycles - found.loop.instructions,
                found.load_distances and "{}, {:.0f}".format(*found.load_distances),
            )
            for found in inspections
        ],
    )
    for title, part in (
        ("One pass through the main loop:", "loop"),
        ("The whole kernel:", "kernel"),
    ):
        print(title)
        report.print_table(
            (
                *("", "arch", "instr.", "FFMA", "share", "un-\nfused", "LDG", "LDS", "STS"),
                *("LDG-\nSTS", "bulk", "bar-\nriers", "addres-\nses", "branch"),
            ),
            [(found.version, found.arch, *_figures(getattr(found, part))) for found in inspections],
        )
    report.print_notes(NOTES)


def print_loop(version: Version, found: Inspection) -> None:
    """The annotated main loop."""
    print(f"\n{found.version}, {found.arch}: one pass through the main loop")
    for instruction, note in inspection.annotated_loop(version, found.arch):
        print(f"  {instruction.address:05x}  {instruction!s:<52}  {note}".rstrip())


def _figures(counts: Counts) -> tuple[Any, ...]:
    return (
        counts.instructions,
        counts.ffma,
        f"{counts.ffma_share:.1%}",
        counts.unfused,
        _widths(counts.global_loads),
        _widths(counts.shared_loads),
        counts.shared_stores,
        _widths(counts.asynchronous_copies),
        counts.bulk_copies,
        counts.barriers,
        counts.addresses,
        counts.branches,
    )


def _widths(by_bits: Mapping[int, int]) -> str | None:
    return "\n".join(f"{n}×{bits}" for bits, n in by_bits.items()) or None


def _occupancy(found: Inspection) -> tuple[Any, ...]:
    limits = found.occupancy
    if limits is None:
        return None, None, "not known"
    return limits.blocks, f"{limits.share:.0%}", limits.limiter
