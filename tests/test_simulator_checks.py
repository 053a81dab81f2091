"""The simulator's checks: every kind of fault is found with its line, whatever the order of the
threads, on right kernels into which it is planted; and right kernels have no findings."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import problems as problems_module
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrices import PLAIN, Layout
from places import SIMULATOR
from problems import Problem, problems

import sgemm
from sgemm import LADDER, simulator
from sgemm.__main__ import main
from sgemm.source import from_file

KERNELS = Path(__file__).parent / "planted_faults"
SEEDS = range(6)


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
    "reads A without asking for its end": Fault(
        "pipeline", "row0 + m < M && k0 + k < K", "row0 + m < M", "out of bounds", "copy_async<1>"
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


def multiply(version, seed, m=20, n=72, k=36):
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    out = np.full((m + 4, n + 36), np.nan, np.float32)[:m, :n]  # with room around it
    with simulator.order(seed):
        sgemm.matmul(a, b, out=out, version=version)
    return out, a @ b


def shape_for(kernel):
    return {"m": 24, "n": 64, "k": 40} if kernel == "bulk" else {}


@pytest.mark.parametrize("kernel", ["tiles", "pipeline", "bulk"])
def test_without_a_fault_nothing_is_found(kernel):
    version = from_file(KERNELS / f"{kernel}.cu")
    for seed in range(20):
        with simulator.checked() as findings:
            result, expected = multiply(version, seed, **shape_for(kernel))
        assert findings == []
        assert np.array_equal(result, expected)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_with_its_line(name, tmp_path):
    fault = FAULTS[name]
    text = (KERNELS / f"{fault.kernel}.cu").read_text()
    assert text.count(fault.old) == 1
    kernel = tmp_path / "planted.cu"
    kernel.write_text(text.replace(fault.old, fault.new))
    lines = kernel.read_text().splitlines()
    version = from_file(kernel)
    for seed in SEEDS:
        with simulator.checked() as findings, pytest.raises(sgemm.KernelError) as raised:
            multiply(version, seed, **shape_for(fault.kernel))
        assert str(raised.value) == str(findings[0])
        where = {
            lines[finding.place.line - 1] if finding.place else ""
            for finding in findings
            if finding.kind == fault.kind
        }
        assert any(fault.where in line for line in where), "\n".join(map(str, findings))


@given(data=st.data())
def test_the_ladder_has_no_findings(version, data):
    problem = data.draw(problems(version))
    with simulator.checked() as findings:
        problems_module.multiply(problem, version, SIMULATOR)
    assert findings == []


@pytest.mark.parametrize("beta", [0.0, 3.0])
@pytest.mark.parametrize("beside", [-1, 0, 1, 4])
@pytest.mark.parametrize("k_beside", [-1, 0, 1, 4])
def test_the_ladder_has_no_findings_around_its_tiles(version, k_beside, beside, beta):
    """Beside the tiles' edges, with float4 where that is a multiple of four and without; and the
    result is right."""
    m, n, _ = (max(1, tile + beside) for tile in version.tile)
    k = max(1, 3 * version.tile[2] + k_beside)
    problem = Problem(
        *(m, n, k), out=PLAIN, alpha=2.0, beta=beta, data="small integers", sharing="always"
    )
    with simulator.checked() as findings:
        product = problems_module.multiply(problem, version, SIMULATOR)
    assert findings == []
    assert np.array_equal(product.c, product.in_integers())


@pytest.mark.parametrize(
    ("name", "layout"), [("v1", Layout(row_step=-1, col_step=3)), ("v0", PLAIN)]
)
@pytest.mark.parametrize("size", [1, 31, 32, 33, 70])
def test_copies_have_no_findings(size, name, layout):
    """Of all three matrices, and from rows to the columns that v0 takes of B; and of the scaling
    that a product without terms is."""
    problem = Problem(size, 102 - size, 40, layout, layout, layout, beta=2.0)
    for alpha in (1.0, 0.0):
        with simulator.checked() as findings:
            product = problems_module.multiply(
                replace(problem, alpha=alpha), LADDER[name], SIMULATOR
            )
        assert findings == []
        assert product.residual().ok


def test_a_finding_tells_all_about_itself(tmp_path):
    """Kernel, line and the line that it was inlined at, block, thread, address, what it collides
    with."""
    kernel = tmp_path / "mine.cu"
    fault = FAULTS["no barrier after the copies"]
    text = (KERNELS / "tiles.cu").read_text().replace(fault.old, fault.new)
    kernel.write_text(text)
    with simulator.checked() as findings, pytest.raises(sgemm.KernelError):
        multiply(from_file(kernel), 0)
    finding = next(finding for finding in findings if finding.kind == "race")
    lines = text.splitlines()
    copies = [n for n, line in enumerate(lines, 1) if "copy_async<" in line]
    assert finding.kernel == finding.place.file == "mine.cu"
    assert finding.other_place.file == "mine.cu"
    assert finding.other_place.line in copies
    assert {file for file, _ in finding.other_place.callers} == {"mine.cu"}
    assert finding.block in range(9)
    assert finding.thread in range(64)
    assert finding.address
    assert finding.times > 1
    assert f"block {finding.block} thread {finding.thread}: race: reads what thread" in str(finding)
    assert f": {finding.other_place} [address " in str(finding)
    without_a_line = str(replace(finding, other_place=None))
    assert ": a line that the compiler does not tell [address " in without_a_line


def test_what_is_checked_computes_the_same(version):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((70, 70)).astype(np.float32) for _ in range(2))
    plain = sgemm.matmul(a, b, version=version)
    with simulator.checked():
        checked = sgemm.matmul(a, b, version=version)
    with simulator.counted():
        counted = sgemm.matmul(a, b, version=version)
    assert np.array_equal(plain, checked)
    assert np.array_equal(plain, counted)


def test_a_launch_without_operands_is_refused():
    """The checks would know nothing of its memory."""
    with simulator.checked(), pytest.raises(sgemm.ArgumentError, match="operands: "):
        simulator.launch(
            KERNELS / "tiles.cu", "sgemm", from_file(KERNELS / "tiles.cu").defines(True), 1, 64, ()
        )


@pytest.mark.parametrize("name", ["no barrier after the copies", "leaves elements out"])
def test_the_command_lists_all_findings(name, tmp_path, capsys):
    fault = FAULTS[name]
    kernel = tmp_path / "mine.cu"
    kernel.write_text((KERNELS / "tiles.cu").read_text().replace(fault.old, fault.new))
    arguments = ["check", "--sanitize", "--source", str(kernel), "--shape", "20x72x36", "--json"]
    assert main(arguments) == 1
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["where"] == "simulator"
    assert row["verdict"] == "wrong"
    assert f"{fault.kind}: " in row["detail"]
    assert "mine.cu" in row["detail"]
    assert main(["check", "--sanitize", "--version", "v0", "--shape", "20x72x36"]) == 0
