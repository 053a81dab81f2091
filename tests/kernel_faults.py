"""Faults of kernels: what is planted into the right kernels of ``planted_faults/``, and what the
simulator finds there."""

from dataclasses import dataclass
from pathlib import Path

KERNELS = Path(__file__).parent / "planted_faults"


@dataclass(frozen=True)
class Fault:
    """``old`` is replaced by ``new`` in the kernel; the finding is of the kind and in a line that
    has ``where``."""

    kernel: str
    old: str
    new: str
    kind: str
    where: str


READS_B = "reinterpret_cast<float4*>(&b_tile"
COPIES_B = "copy_async<4>(&b_tile[buffer][row][col], b, valid);"
READS = """        for (int k = 0; k < TILE_K; ++k)
            sum = fmaf(a_tile[buffer][row][k], b_tile[buffer][k][lane], sum);
"""
ARRIVES = """        __syncwarp(); // the warp has read it
        if (lane == 0) mbarrier_arrive(&empty[buffer]);
"""
FAULTS = {
    # Addresses.
    "reads a row of A too far": Fault(
        "tiles", "row0 + row < M && k0 + k < K);", "k0 + k < K);", "out of bounds", "copy_async<1>"
    ),
    # Not in pipeline: memcheck ends the threads at fault, and nobody else would arrive for them.
    "reads A without asking for its end": Fault(
        "tiles",
        "row0 + row < M && k0 + k < K);",
        "row0 + row < M);",
        "out of bounds",
        "copy_async<1>(&a_tile",
    ),
    "writes beside C": Fault(
        "tiles",
        "if (row0 + row >= M || col0 + col + j >= N) continue;",
        "if (row0 + row >= M) continue;",
        "out of bounds",
        "*c = beta",
    ),
    "writes at a wild address": Fault(
        "tiles",
        "float* c = C + (row0",
        "float* c = C + (1ll << 44) + (row0",
        "out of bounds",
        "*c =",
    ),
    "reads past a shared array": Fault(
        "tiles",
        "a_tile[buffer][row][k];",
        "a_tile[buffer + 1][row][k];",
        "out of bounds",
        "= a_tile",
    ),
    "reads before a shared array": Fault(
        "tiles", "&b_tile[buffer][k][col]", "&b_tile[buffer - 1][k][col]", "out of bounds", READS_B
    ),
    "copies past a shared array": Fault(
        "tiles",
        "copy_async<4>(&b_tile[buffer]",
        "copy_async<4>(&b_tile[2 * buffer]",
        "out of bounds",
        "copy_async<4>",
    ),
    "misaligned float4": Fault(
        "tiles", "&b_tile[buffer][k][col]", "&b_tile[buffer][k][col + 1]", "misaligned", READS_B
    ),
    "misaligned asynchronous copy": Fault(
        "tiles",
        COPIES_B,
        "copy_async<4>(&b_tile[buffer][row][col], b + 1, valid);",
        "misaligned",
        "copy_async<4>",
    ),
    "misaligned bulk copy": Fault(
        "bulk", "+ k0, TILE_K * 4,", "+ k0 + 1, TILE_K * 4,", "misaligned", "copy_bulk_async(a_tile"
    ),
    # The result and the operands.
    "writes to A": Fault(
        "tiles", "*c = beta", "const_cast<float*>(A)[row] = beta", "read-only", "const_cast"
    ),
    "writes into the next tile": Fault(
        "tiles",
        "*c = beta",
        "c[N - col0 > TILE_N ? 1 : 0] = beta",
        "outside the tile",
        "c[N - col0",
    ),
    "writes an element twice": Fault(
        "tiles",
        "C + (row0 + row) * ldc + col0 + col + j;",
        "C + (row0 + row) * ldc + col0 + col;",
        "unwritten",
        "",
    ),
    "two threads write an element": Fault(
        "pipeline",
        "C + (row0 + row) * ldc + col0 + lane",
        "C + (row0 + row) * ldc + col0 + lane / 2",
        "race",
        "*c = beta",
    ),
    "leaves elements out": Fault(
        "tiles", "if (row0 + row >= M ||", "if (row0 + row >= M - 1 ||", "unwritten", ""
    ),
    "reads C where beta is 0": Fault(
        "tiles", "beta == 0.0f ? alpha * result[j] :", "", "uninitialised", "*c = "
    ),
    # Shared memory and who is ordered after whom.
    "reads shared memory that nobody wrote": Fault(
        "tiles", "fill(0, 0);", "", "uninitialised", "= a_tile"
    ),
    "no barrier after the copies": Fault("tiles", "__syncthreads();", "", "race", READS_B),
    "a barrier too early": Fault(
        "tiles",
        "copy_async_wait<0>();\n        __syncthreads();",
        "__syncthreads();\n        copy_async_wait<0>();",
        "race",
        READS_B,
    ),
    "overwrites the buffer in use": Fault(
        "tiles", "fill(1 - buffer, k0", "fill(buffer, k0", "copy in flight", READS_B
    ),
    "overwrites what others still read": Fault(
        "tiles",
        "copy_async_wait<0>();\n        __syncthreads();\n        "
        "if (k0 + TILE_K < K) fill(1 - buffer, k0 + TILE_K);",
        "if (k0 + TILE_K < K) fill(1 - buffer, k0 + TILE_K);\n        "
        "copy_async_wait<1>();\n        __syncthreads();",
        "copy in flight",
        READS_B,
    ),
    "a warp that is not waited for": Fault(
        "pipeline", "__syncwarp(); // the", "// the", "race", "copy_async<1>(&b_tile"
    ),
    "arrives before it has read": Fault(
        "pipeline",
        READS + ARRIVES,
        ARRIVES + READS,
        "race",
        "copy_async<1>(&b_tile",
    ),
    "does not wait for an empty buffer": Fault(
        "pipeline",
        "mbarrier_wait(&empty[buffer], parity ^ 1);",
        "",
        "copy in flight",
        "copy_async<1>(&b_tile",
    ),
    "uses mbarriers before they are there": Fault(
        "bulk", "__syncthreads(); // the mbarriers", "// the mbarriers", "mbarrier", "mbarrier_wait"
    ),
    # Asynchronous copies.
    "no wait for the copies": Fault(
        "tiles", "copy_async_wait<0>();", "", "copy in flight", READS_B
    ),
    "a wait that is too weak": Fault(
        "tiles", "copy_async_wait<0>();", "copy_async_wait<1>();", "copy in flight", READS_B
    ),
    "no commit": Fault("tiles", "copy_async_commit();", "", "copy in flight", READS_B),
    "does not wait for a full buffer": Fault(
        "pipeline", "mbarrier_wait(&full[buffer], parity);", "", "copy in flight", "fmaf(a_tile"
    ),
    "arrives before the copies have": Fault(
        "pipeline",
        "copy_async_arrive(&full",
        "mbarrier_arrive(&full",
        "copy in flight",
        "fmaf(a_tile",
    ),
    "expects fewer bytes than come": Fault(
        "bulk", "(TILE_M + TILE_N) * TILE_K * 4", "TILE_M * TILE_K * 4", "deadlock", "mbarrier_wait"
    ),
    # Barriers.
    "not all reach the barrier": Fault(
        "tiles",
        "__syncthreads();",
        "if (threadIdx.x != 5) __syncthreads();",
        "barrier",
        "__syncthreads",
    ),
    "wait at different barriers": Fault(
        "tiles",
        "__syncthreads();",
        "if (threadIdx.x < 32) __syncthreads();\n        else __syncthreads();",
        "barrier",
        "__syncthreads",
    ),
    "a named barrier for too many": Fault(
        "pipeline",
        "named_barrier_sync(1, MULTIPLIERS)",
        "named_barrier_sync(1, THREADS)",
        "deadlock",
        "named_barrier_sync",
    ),
    "a missing arrival": Fault(
        "pipeline",
        "if (lane == 0) mbarrier_arrive(&empty[buffer]);",
        "",
        "deadlock",
        "mbarrier_wait(&full",
    ),
    "one arrival too many": Fault(
        "bulk",
        "mbarrier_init(&full[i], 1)",
        "mbarrier_init(&full[i], 2)",
        "deadlock",
        "mbarrier_wait",
    ),
    # The kernel's own.
    "an assertion": Fault(
        "tiles", "int buffer = 0;", "int buffer = 0; assert(lda < 0);", "assertion", "assert("
    ),
    "a trap": Fault("tiles", "int buffer = 0;", "int buffer = 0; __trap();", "trap", "__trap"),
    "too large a frame": Fault(
        "tiles",
        "const float result[4]",
        "auto deep = [](auto& self, int n) -> float {\n"
        "        volatile float own[512]; own[n % 512] = n;\n"
        "        return n ? self(self, n - 1) + own[n % 512] : 0.0f; };\n"
        "    sum.x += 0 * deep(deep, 100);\n    const float result[4]",
        "stack",
        "",
    ),
}


def planted(name, entry="sgemm"):
    """The text of a kernel with a fault, whose function is called ``entry``."""
    fault = FAULTS[name]
    text = (KERNELS / f"{fault.kernel}.cu").read_text()
    assert text.count(fault.old) == 1
    return text.replace(fault.old, fault.new).replace(" sgemm(", f" {entry}(")
