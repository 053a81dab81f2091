"""How many blocks of a kernel fit an SM, by the limits of each GPU architecture.

Imports only the standard library, so that the benchmarks can use the checkout's.
"""

from dataclasses import dataclass

WARP = 32
SCHEDULERS = 4
"""Warp schedulers of an SM, each with a quarter of its registers."""

GENERATIONS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
"""The architectures that are looked at where nobody says which: one for each kind of SM."""

_WARP_REGISTERS_UNIT = 256  # a warp's registers are allocated in so many
_SHARED_UNIT = 128  # bytes


@dataclass(frozen=True)
class Multiprocessor:
    """An SM: the ``warps`` and ``blocks`` that it holds at most, its ``shared_bytes``, those of
    them that each block costs beside its own (``reserved_bytes``), its 32-bit ``registers``, and
    the FP32 multiply-adds that it begins per cycle (``fp32_lanes``)."""

    warps: int
    blocks: int
    shared_bytes: int
    fp32_lanes: int = 128
    reserved_bytes: int = 1024
    registers: int = 65536


_AMPERE = Multiprocessor(warps=64, blocks=32, shared_bytes=164 * 1024, fp32_lanes=64)
_GEFORCE_AMPERE = Multiprocessor(warps=48, blocks=16, shared_bytes=100 * 1024)
_ADA = Multiprocessor(warps=48, blocks=24, shared_bytes=100 * 1024)
_HOPPER = Multiprocessor(warps=64, blocks=32, shared_bytes=228 * 1024)

MULTIPROCESSORS = {
    "sm_75": Multiprocessor(
        warps=32, blocks=16, shared_bytes=64 * 1024, fp32_lanes=64, reserved_bytes=0
    ),
    "sm_80": _AMPERE,
    "sm_86": _GEFORCE_AMPERE,
    "sm_87": Multiprocessor(warps=48, blocks=16, shared_bytes=164 * 1024),
    "sm_89": _ADA,
    "sm_90": _HOPPER,
    "sm_100": _HOPPER,
    "sm_103": _HOPPER,
    "sm_120": _ADA,
    "sm_121": _ADA,
}
"""Architecture to its SM. CUDA C++ Programming Guide, technical specifications per compute
capability; FP32 lanes: its table of arithmetic throughput; reserved shared memory: the tuning
guides from Ampere on."""


@dataclass(frozen=True)
class Occupancy:
    """How many ``blocks`` of a kernel an SM holds at a time, their ``warps``, these as a ``share``
    of the warps that it could hold, and what stands against one block more."""

    blocks: int
    warps: int
    share: float
    limiter: str


def multiprocessor(arch: str) -> Multiprocessor | None:
    """The SM of an architecture, such as ``"sm_90"`` or ``"sm_90a"``; None where its limits are not
    known here."""
    return MULTIPROCESSORS.get(arch.rstrip("af"))


def occupancy(sm: Multiprocessor, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """The theoretical occupancy of a kernel with so many threads per block, registers per thread
    and bytes of shared memory per block, static and dynamic together."""
    warps = -(-threads // WARP)
    per_warp = _round_up(registers * WARP, _WARP_REGISTERS_UNIT)
    warps_by_registers = sm.registers // SCHEDULERS // per_warp * SCHEDULERS
    per_block = _round_up(shared_bytes + sm.reserved_bytes, _SHARED_UNIT)
    limits = {
        "warps": sm.warps // warps,  # first: where others are as tight, nothing more is to be had
        "blocks": sm.blocks,
        "registers": warps_by_registers // warps,
        "shared memory": sm.shared_bytes // max(per_block, 1),
    }
    limiter = min(limits, key=lambda name: limits[name])
    blocks = limits[limiter]
    return Occupancy(blocks, blocks * warps, blocks * warps / sm.warps, limiter)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
