"""The highest share of a GPU's FFMA peak that a version can reach at a shape, and what limits it.

docs/ceiling.md has the model in words, with its sources and its error.
"""

from dataclasses import dataclass

from .errors import ArgumentError
from .inspection import Inspection
from .ladder import Version
from .occupancy import MULTIPROCESSORS, SCHEDULERS, WARP, Multiprocessor
from .sass import Counts

L2_CYCLES = 200
"""No load from global memory that misses the L1 cache takes fewer."""

SCHEDULER_LIMITS = ("issue slots", "operands", "barriers", "resident warps")


@dataclass(frozen=True)
class Gpu:
    """What of a GPU the model needs; ``mhz`` is the highest SM clock."""

    name: str
    arch: str
    sms: int
    mhz: int
    gigabytes_per_second: float

    @property
    def sm(self) -> Multiprocessor:
        return MULTIPROCESSORS[self.arch]

    @property
    def peak_gflops(self) -> float:
        """An FFMA in every lane and cycle."""
        return 2 * self.sms * self.sm.fp32_lanes * self.mhz / 1e3


GPUS = (
    Gpu("NVIDIA A100-SXM4-80GB", "sm_80", 108, 1410, 2039),
    Gpu("NVIDIA GeForce RTX 3090", "sm_86", 82, 1695, 936),
    Gpu("NVIDIA GeForce RTX 4090", "sm_89", 128, 2520, 1008),
    Gpu("NVIDIA H100 80GB HBM3", "sm_90", 132, 1980, 3350),
    Gpu("NVIDIA H200", "sm_90", 132, 1980, 4800),
    Gpu("NVIDIA B200", "sm_100", 148, 1965, 8000),
    Gpu("NVIDIA GeForce RTX 5090", "sm_120", 170, 2407, 1792),
)
"""SMs, boost clock and memory bandwidth of NVIDIA's data sheets and architecture white papers."""


@dataclass(frozen=True)
class Ceiling:
    """``limits`` are shares of the FFMA peak by what sets them, ``share`` is the lowest,
    ``limit`` its name. ``resident_blocks`` of the shape share an SM."""

    share: float
    limit: str
    limits: dict[str, float]
    resident_blocks: int

    def after_stalls(self, stalled: float) -> float:
        """The share that is left where warps wait for memory a fraction ``stalled`` of their time,
        as measured: an SM does nothing while one of its blocks waits. Where warps queue for
        a unit that is busy, their wait is that unit's limit already."""
        if self.limit not in SCHEDULER_LIMITS:
            return self.share
        return self.share * max(0.0, 1 - stalled * self.resident_blocks)


def gpu_named(text: str) -> Gpu:
    """The one GPU whose name contains ``text``, in whatever case; else ArgumentError."""
    found = [gpu for gpu in GPUS if text.casefold() in gpu.name.casefold()]
    if len(found) != 1:
        known = ", ".join(gpu.name for gpu in found or GPUS)
        raise ArgumentError(f"gpu: {text!r} is not the name of one GPU; there are {known}")
    return found[0]


def ceiling(version: Version, found: Inspection, gpu: Gpu, m: int, n: int, k: int) -> Ceiling:
    """The ceiling of a version, inspected for the GPU's architecture, at an m×n×k product, all
    three positive."""
    loop, occupancy = found.loop, found.occupancy
    if occupancy is None or not occupancy.blocks:
        raise ArgumentError(f"{version.name}: no block of it fits an SM of {gpu.arch}")
    if not loop.ffma:
        raise ArgumentError(f"{version.name}: its machine code has no loop with FFMA")
    # A scheduler's FFMA takes as many cycles as it has fewer lanes than a warp.
    ffma_cycles = loop.ffma * WARP * SCHEDULERS / gpu.sm.fp32_lanes
    # Of one warp that multiplies, with its part of what the warps issue that only copy.
    multiplying = version.threads
    issued: float = loop.instructions
    requests: float = _requests(loop)
    if found.producer_loop:
        multiplying = version.multipliers
        producers = version.threads / multiplying - 1
        issued += producers * found.producer_loop.instructions
        requests += producers * _requests(found.producer_loop)
    pass_cycles = max(ffma_cycles, found.dispatch_cycles, issued)

    tile_m, tile_n, tile_k = version.tile
    tiles = version.tiles(m, n)
    plan = version.plan(m, n, k, gpu.sms)
    most_tiles: float = -(-tiles // gpu.sms)  # of one SM
    if plan.shared_tiles:
        most_tiles = tiles / min(gpu.sms, plan.blocks)
    computed = most_tiles * gpu.sms * tile_m * tile_n * (-(-k // tile_k) * tile_k)
    used = m * n * k / computed

    resident = min(occupancy.blocks, -(-plan.blocks // gpu.sms))
    warps = resident * multiplying / (WARP * SCHEDULERS)  # of a scheduler
    waiting = L2_CYCLES if loop.global_loads else 0
    alone = max(pass_cycles + waiting, found.warp_cycles)  # cycles of a warp's pass
    # While all warps of its only block are on their way past a barrier, an SM multiplies nothing;
    # the other instructions on that way may be the ones that are issued meanwhile.
    idle = 0.0
    if resident == 1:
        idle = sum(max(0.0, cycles - warps * others) for others, cycles in found.pauses)

    seconds = 2 * m * n * k / (gpu.peak_gflops * 1e9)
    transfer_seconds = 4 * (m * k + k * n + m * n) / (gpu.gigabytes_per_second * 1e9)
    limits = {
        "tiles": used,
        "issue slots": used * ffma_cycles / max(ffma_cycles, issued),
        "operands": used * ffma_cycles / max(ffma_cycles, found.dispatch_cycles),
        "barriers": used * warps * ffma_cycles / (warps * pass_cycles + idle),
        "load/store unit": used * min(1.0, ffma_cycles / (SCHEDULERS * max(requests, 1))),
        "resident warps": used * min(1.0, warps * ffma_cycles / alone),
        "memory": min(1.0, seconds / transfer_seconds),
    }
    limit = min(limits, key=lambda name: limits[name])
    return Ceiling(limits[limit], limit, limits, resident)


def _requests(counts: Counts) -> int:
    """How often the load/store unit is asked for something."""
    loads = (counts.global_loads, counts.shared_loads, counts.asynchronous_copies)
    return counts.shared_stores + sum(sum(by_bits.values()) for by_bits in loads)
