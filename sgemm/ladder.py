"""The ladder: every version of the kernel, in order, as data.

Nothing else lists versions: calling, checking, benchmarks and pages read them from here. The module
imports only the standard library, so that the benchmarks can load the checkout's ladder by path
while an older commit's package is installed.

To add a version, write its ``.cu`` file and append an entry. The article figures are GFLOPS at
4096x4096x4096 on the card of the article that the ladder comes from (30 to 40 TFLOPS of FP32 peak).
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Literal

Layout = Literal["row", "column"]


FLOAT_BYTES = 4

# What it costs blocks to add up a tile that they share, in steps of k that they could multiply
# meanwhile: each time that sums go to memory and back, and for each block's sums. Measured on an
# H200. FAN_IN blocks' sums are added at a time, as in kernels/stream_k.cuh.
SHARING_COST = 40
COST_OF_A_PART = 15
FAN_IN = 8


@dataclass(frozen=True)
class Plan:
    """How a launch deals out its tiles: to so many blocks, which share so many of the tiles.

    ``steps`` is for how many steps of k a block is busy, sharing included, or all blocks that take
    turns on its place in an SM.
    """

    blocks: int
    shared_tiles: int
    steps: float


@dataclass(frozen=True)
class Version:
    """One step of the ladder.

    ``tile`` is what one block computes, ``(M, N, K)`` floats, with K the depth it takes at a time
    (1 where nothing is staged); ``micro_tile`` what one thread computes, ``(M, N)``.
    ``stages`` is how many tiles of A and B fit a block's shared memory at once;
    ``shared_bytes`` is the shared memory that a block's kernel declares,
    ``dynamic_shared_bytes`` what its launch adds. ``slices`` is among how many lanes of a warp K is
    split, and ``stream_k`` says whether blocks stay and share tiles. ``b_layout`` is the layout of
    B that the kernel reads; ``sgemm.matmul`` converts the other one. ``float4`` says whether the
    kernel has a float4 path to global memory, beside a scalar one for operands that do not allow
    it; ``a_by_floats``, that it copies A float by float on both: only B must allow it.
    ``min_compute_capability`` is the oldest GPU that can run it, and ``peak_share`` the share of
    the FFMA peak that it reached on an H200 while all SMs were busy; 0 for those that come into
    question only for what they teach.
    """

    name: str
    title: str
    change: str
    source: str
    tile: tuple[int, int, int]
    threads: int
    b_layout: Layout = "row"
    micro_tile: tuple[int, int] = (1, 1)
    blocks_per_sm: int = 1
    stages: int = 1
    shared_bytes: int = 0
    dynamic_shared_bytes: int = 0
    slices: int = 1
    stream_k: bool = False
    float4: bool = False
    a_by_floats: bool = False
    min_compute_capability: tuple[int, int] = (7, 5)
    peak_share: float = 0.0
    article_gflops: int | None = None

    @property
    def multipliers(self) -> int:
        """The threads of a block that have a micro-tile."""
        tile_m, tile_n, _ = self.tile
        micro_m, micro_n = self.micro_tile
        return tile_m * tile_n * self.slices // (micro_m * micro_n)

    def reshaped(
        self,
        tile: tuple[int, int, int],
        micro_tile: tuple[int, int],
        blocks_per_sm: int,
        stages: int,
        slices: int,
    ) -> "Version":
        """The same kernel with other tiles, with what follows from them: ``threads``, of which as
        many as here do something else than multiply, and ``dynamic_shared_bytes``.

        The kernel's own assertions tell whether it can have them. ``shared_bytes`` stays as it is
        here: the compiler tells what such a kernel declares.
        """
        other = replace(
            self,
            tile=tile,
            micro_tile=micro_tile,
            blocks_per_sm=blocks_per_sm,
            stages=stages,
            slices=slices,
        )
        threads = other.multipliers + self.threads - self.multipliers
        shared_bytes = 0
        if self.dynamic_shared_bytes:
            tile_m, tile_n, tile_k = tile
            lanes_m = 2 if slices == 4 else 4
            lanes_n = 32 // slices // lanes_m
            padding = 4 if slices == 1 else 4 * (lanes_m + lanes_n)  # kernels/a_transposed.cuh
            shared_bytes = FLOAT_BYTES * stages * tile_k * (tile_m + tile_n + padding)
            if not self.stream_k:  # in the end each warp leaves its sums there
                sums = (threads // 32) * tile_m * (tile_n + 4)
                shared_bytes = max(shared_bytes, FLOAT_BYTES * sums)
        return replace(other, threads=threads, dynamic_shared_bytes=shared_bytes)

    def tiles(self, m: int, n: int) -> int:
        """How many tiles an m×n result has."""
        return -(-m // self.tile[0]) * -(-n // self.tile[1])

    def plan(self, m: int, n: int, k: int, multiprocessors: int) -> Plan:
        """How to deal out an m×n×k product on a GPU with so many SMs.

        Without stream-K each tile has a block. With it, as many blocks as SMs hold take the tiles
        in turns; the tiles that do not fill a turn, and those of one turn more, are shared if that
        ends sooner. Where there are fewer tiles than blocks, each is split into equal parts, or if
        that ends sooner all together are dealt out to all blocks.
        """
        tiles = max(1, self.tiles(m, n))
        slots = multiprocessors * self.blocks_per_sm
        tile_k = self.tile[2]
        passes = max(1, -(-k // tile_k))  # over a tile
        unshared = -(-tiles // slots) * passes * tile_k
        if not self.stream_k:
            return Plan(tiles, 0, unshared)
        plans = [Plan(min(tiles, slots), 0, unshared)]

        def share(blocks: int, shared_tiles: int, passes: float, parts: float) -> None:
            steps = passes * tile_k
            while parts > 1:
                steps += SHARING_COST + COST_OF_A_PART * min(parts, FAN_IN)
                parts = ceil(parts / FAN_IN)
            plans.append(Plan(blocks, shared_tiles, steps))

        if tiles > slots and tiles % slots:
            share(slots, tiles % slots + slots, tiles * passes / slots, parts=2)
        elif tiles < slots:
            for parts in range(2, min(slots // tiles, passes) + 1):
                share(parts * tiles, tiles, -(-passes // parts), parts)
            blocks = min(slots, tiles * passes)
            share(blocks, tiles, -(-tiles * passes // blocks), parts=blocks / tiles + 2)
        return min(plans, key=lambda plan: plan.steps)

    def cost(self, plan: Plan) -> float:
        """How long a plan keeps an SM busy, up to a factor that all versions share."""
        tile_m, tile_n, _ = self.tile
        return plan.steps * tile_m * tile_n * self.blocks_per_sm / self.peak_share

    def defines(self, vector: bool) -> dict[str, int]:
        """The compile-time constants of the kernel: macro name to value."""
        tile_m, tile_n, tile_k = self.tile
        micro_m, micro_n = self.micro_tile
        return {
            "TILE_M": tile_m,
            "TILE_N": tile_n,
            "TILE_K": tile_k,
            "MICRO_M": micro_m,
            "MICRO_N": micro_n,
            "THREADS": self.threads,
            "BLOCKS_PER_SM": self.blocks_per_sm,
            "STAGES": self.stages,
            "SLICES": self.slices,
            "DYNAMIC_SHARED_BYTES": self.dynamic_shared_bytes,
            "VECTOR": int(vector and self.float4),
        }


LADDER = {
    version.name: version
    for version in (
        Version(
            name="v0",
            title="naive, B column-major",
            change="one thread per output; a warp's loads of B are K floats apart",
            source="v0_naive.cu",
            b_layout="column",
            tile=(8, 32, 1),
            threads=256,
            article_gflops=800,
        ),
        Version(
            name="v1",
            title="coalesced, B row-major",
            change="B row-major: a warp's loads of B coalesce",
            source="v1_coalesced.cu",
            tile=(8, 32, 1),
            threads=256,
            article_gflops=2600,
        ),
        Version(
            name="v2",
            title="shared-memory tiles",
            change="tiles of A and B in shared memory, copied float4 by float4",
            source="v2_shared_memory.cu",
            tile=(32, 32, 64),
            threads=1024,
            shared_bytes=16384,
            float4=True,
            article_gflops=5300,
        ),
        Version(
            name="v3",
            title="register micro-tiles",
            change="a micro-tile of outputs per thread, in registers",
            source="v3_register_tile.cu",
            tile=(128, 128, 16),
            micro_tile=(16, 8),
            threads=128,
            blocks_per_sm=2,
            shared_bytes=18432,
            float4=True,
            article_gflops=8800,
            peak_share=0.57,
        ),
        Version(
            name="v4",
            title="double buffering",
            change="two buffers: cp.async fills one while the threads multiply the other",
            source="v4_double_buffering.cu",
            tile=(128, 128, 16),
            micro_tile=(16, 8),
            threads=128,
            blocks_per_sm=2,
            stages=2,
            shared_bytes=36864,
            float4=True,
            article_gflops=10600,
            peak_share=0.71,
        ),
        Version(
            name="v5",
            title="outer products",
            change="A transposed in shared memory: a step of k is an outer product",
            source="v5_outer_products.cu",
            tile=(128, 256, 8),
            micro_tile=(16, 8),
            threads=256,
            stages=3,
            shared_bytes=37248,
            float4=True,
            a_by_floats=True,
            peak_share=0.75,
        ),
        Version(
            name="v6",
            title="producer warps",
            change="four warps only copy, the others only multiply; they meet at mbarriers",
            source="v6_producer_warps.cu",
            tile=(128, 256, 8),
            micro_tile=(16, 8),
            threads=384,
            stages=3,
            shared_bytes=37296,
            float4=True,
            a_by_floats=True,
            min_compute_capability=(9, 0),
            peak_share=0.82,
        ),
        Version(
            name="v7",
            title="stream-K",
            change="blocks stay and share all steps of k equally, also those of one tile",
            source="v7_stream_k.cu",
            tile=(128, 256, 8),
            micro_tile=(16, 8),
            threads=384,
            stages=3,
            shared_bytes=37332,
            stream_k=True,
            float4=True,
            a_by_floats=True,
            min_compute_capability=(9, 0),
            peak_share=0.84,
        ),
        Version(
            name="v8",
            title="lanes split K",
            change="a warp's lanes share K as well: small tiles, micro-tiles as large as before",
            source="v8_split_lanes.cu",
            tile=(64, 128, 32),
            micro_tile=(16, 8),
            threads=384,
            stages=3,
            shared_bytes=96,
            dynamic_shared_bytes=82944,
            slices=4,
            stream_k=True,
            float4=True,
            a_by_floats=True,
            min_compute_capability=(9, 0),
            peak_share=0.79,
        ),
        Version(
            name="v9",
            title="warps split K",
            change="all warps of a block compute one small tile, each its own steps of k",
            source="v9_split_warps.cu",
            tile=(32, 64, 64),
            micro_tile=(8, 8),
            threads=256,
            stages=3,
            dynamic_shared_bytes=76800,
            float4=True,
            a_by_floats=True,
            min_compute_capability=(8, 0),
            peak_share=0.54,
        ),
    )
}
"""Version name to version, in the order in which they were built on each other."""


def names_for(compute_capability: tuple[int, int]) -> tuple[str, ...]:
    """The names of the versions that GPUs of a compute capability can run."""
    return tuple(
        name
        for name, version in LADDER.items()
        if compute_capability >= version.min_compute_capability
    )


@lru_cache(4096)
def fastest(names: tuple[str, ...], m: int, n: int, k: int, multiprocessors: int) -> str:
    """Which of these versions computes an m×n×k product soonest on a GPU with so many SMs: by
    their plans, and by how fast each is while it computes."""
    candidates = [name for name in names if LADDER[name].peak_share]

    def cost(name: str) -> float:
        version = LADDER[name]
        return version.cost(version.plan(m, n, k, multiprocessors))

    return min(candidates, key=cost) if candidates else names[-1]
