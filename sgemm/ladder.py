"""The ladder: every version of the kernel, in order, as data.

Nothing else lists versions: calling, checking, benchmarks and pages read them from here. The module
imports only the standard library, so that the benchmarks can load the checkout's ladder by path
while an older commit's package is installed.

To add a version, write its ``.cu`` file and append an entry. The article figures are GFLOPS at
4096x4096x4096 on the card of the article that the ladder comes from (30 to 40 TFLOPS of FP32 peak).
"""

from dataclasses import dataclass
from typing import Literal

Layout = Literal["row", "column"]


@dataclass(frozen=True)
class Version:
    """One step of the ladder.

    ``tile`` is what one block computes, ``(M, N, K)`` floats, with K the depth it takes at a time
    (1 where nothing is staged); ``micro_tile`` what one thread computes, ``(M, N)``.
    ``stages`` is how many tiles of A and B fit a block's shared memory at once, and
    ``shared_bytes`` is the static shared memory of a block. ``b_layout`` is the layout of B that
    the kernel reads; ``sgemm.matmul`` converts the other one. ``float4`` says whether the kernel
    has a float4 path to global memory, beside a scalar one for operands that do not allow it.
    ``min_compute_capability`` is the oldest GPU that can run it.
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
    float4: bool = False
    min_compute_capability: tuple[int, int] = (7, 5)
    article_gflops: int | None = None

    def blocks(self, m: int, n: int) -> int:
        """How many blocks compute an m×n result, one tile each."""
        return -(-m // self.tile[0]) * -(-n // self.tile[1])

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
            min_compute_capability=(9, 0),
        ),
    )
}
"""Version name to version, slowest first."""
