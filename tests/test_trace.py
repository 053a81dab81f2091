"""``python -m sgemm trace``: what is counted, where the counts are known, and on the ladder."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sgemm
from benchmarks.trace import SHAPES, Trace
from sgemm import LADDER, matmul, simulator
from sgemm.__main__ import main
from sgemm.kernel_files import kernel_path, kernels_folder
from sgemm.simulated import SMS, Simulated, simulated_sms
from sgemm.simulator.counts import total
from sgemm.trace import trace

# Lane i reads and writes both memories at i / group * stride, in floats, float2s or float4s.
PATTERN = """
template <typename T>
__device__ inline void move(T* global, T* shared, int index) {
    shared[index] = global[index];
    __syncthreads();
    global[index] = shared[index];
}

extern "C" __global__ void pattern(int width, int stride, int group, float* global) {
    __shared__ alignas(128) float shared[4096];
    const int index = threadIdx.x / group * stride;
    if (width == 1) {
        move(global, shared, index);
    } else if (width == 2) {
        move(reinterpret_cast<float2*>(global), reinterpret_cast<float2*>(shared), index);
    } else {
        move(reinterpret_cast<float4*>(global), reinterpret_cast<float4*>(shared), index);
    }
}
"""


@pytest.fixture(scope="module")
def pattern(tmp_path_factory):
    source = tmp_path_factory.mktemp("pattern") / "pattern.cu"
    source.write_text(f'#include "portable.cuh"\n{PATTERN}')
    memory = np.ones(4096 + 64, np.float32)

    def count(width, stride, group=1, offset=0, threads=32):
        start = memory.ctypes.data + -memory.ctypes.data % 256
        arguments = np.int32(width), np.int32(stride), np.int32(group), np.uintp(start + offset)
        with simulator.counted() as launches:
            simulator.launch(source, "pattern", {}, 1, threads, arguments)
        return total(launches[0].lines.values())

    return count


@pytest.mark.parametrize(
    ("width", "stride", "group", "load", "store"),
    [
        (1, 0, 1, 1, 1),  # one word for all
        (1, 1, 1, 1, 1),
        (1, 2, 1, 2, 2),
        (1, 3, 1, 1, 1),
        (1, 8, 1, 8, 8),
        (1, 32, 1, 32, 32),
        (1, 33, 1, 1, 1),
        (1, 32, 4, 8, 8),
        (2, 1, 1, 2, 2),
        (2, 1, 2, 1, 2),  # a load's halves go together where pairs of lanes agree
        (4, 1, 1, 4, 4),
        (4, 0, 1, 2, 4),
        (4, 1, 2, 2, 4),
        (4, 1, 8, 2, 4),
        (4, 5, 1, 4, 4),
        (4, 8, 1, 32, 32),
    ],
)
def test_bank_conflicts(pattern, width, stride, group, load, store):
    counts = pattern(width, stride, group)
    assert counts.shared_loads.requests == counts.shared_stores.requests == 1
    assert counts.shared_loads.units == load
    assert counts.shared_stores.units == store


@pytest.mark.parametrize(
    ("width", "stride", "group", "offset", "sectors", "ideal"),
    [
        (1, 1, 1, 0, 4, 4),
        (1, 1, 1, 4, 5, 4),  # not aligned
        (1, 0, 1, 0, 1, 1),
        (1, 8, 1, 0, 32, 4),
        (1, 64, 1, 0, 32, 4),
        (1, 2, 1, 0, 8, 4),
        (4, 1, 1, 0, 16, 16),
        (4, 2, 1, 0, 32, 16),
        (2, 1, 1, 0, 8, 8),
    ],
)
def test_sectors(pattern, width, stride, group, offset, sectors, ideal):
    counts = pattern(width, stride, group, offset)
    for access in (counts.global_loads, counts.global_stores):
        assert (access.requests, access.units, access.ideal) == (1, sectors, ideal)
        assert access.floats == 32 * width


@given(
    st.sampled_from([1, 2, 4]), st.integers(0, 30), st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 130),
)  # fmt: skip
def test_counts_against_their_definition(pattern, width, stride, group, threads):
    """Sectors and ideal, by sets."""
    stride = min(stride, 4096 // width // (threads // group + 1))
    counts = pattern(width, stride, group, threads=threads)
    warps = [range(first, min(first + 32, threads)) for first in range(0, threads, 32)]
    words = [
        {thread // group * stride * width + i for thread in warp for i in range(width)}
        for warp in warps
    ]
    assert counts.global_loads.requests == len(warps)
    assert counts.global_loads.floats == threads * width
    assert counts.global_loads.units == sum(len({word // 8 for word in its}) for its in words)
    assert counts.global_loads.ideal == sum(-(-len(its) // 8) for its in words)


def test_the_first_versions_coalesce_as_nsight_compute_says():
    """16.5 and 2.5 sectors per request on an H200: B's 32, or 4, and A's one."""
    v0, v1 = (trace(LADDER[name], 64, 64, 64) for name in ("v0", "v1"))
    assert v0.total.global_loads.units_per_request == 16.5
    assert v1.total.global_loads.units_per_request == 2.5
    assert v0.total.global_loads.ideal_per_request == 2.5


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("step", "sectors"), [(1, 4), (-1, 4), (2, 8), (-2, 8)])
def test_copies_coalesce(step, order, sectors):
    """Every other float takes twice the sectors, and one more where the matrix does not begin at a
    sector."""
    one = np.ones((64, 64), np.float32)
    view = np.ones((64, 64 * abs(step)), np.float32)[:, ::step]
    view = view if order == "C" else view.T
    tall = np.ones((1, 64), np.float32).repeat(64, 0)
    with simulator.counted() as launches:
        matmul(view, tall, version="v0")  # which takes B by columns
        matmul(one, tall, out=view, version="v1")
    copies = [total(each.lines.values()) for each in launches if each.entry == "copy_strided"]
    assert copies
    for copy in copies:
        for access in (copy.global_loads, copy.global_stores):
            assert access.units_per_request <= sectors + 1


def test_loads_of_a_micro_tile_take_two_wavefronts(version):
    """Of A and of B: the lanes stand so that those of both agree in pairs."""
    if version.micro_tile == (1, 1):
        return
    m, n, k = version.tile
    one = trace(version, m, n, 2 * k)
    loads = {
        line.shared_loads.units_per_request
        for (file, _), line in one.lines.items()
        if file in ("a_row_major.cuh", "a_transposed.cuh") and line.shared_loads.requests
    }
    assert loads == {2}


def test_what_holds_for_every_version(version):
    shape = m, n, k = 256, 256, 64
    one = trace(version, *shape)
    epilogue = m * n  # alpha
    assert m * n * k <= one.total.fmas <= m * n * k + epilogue
    assert one.total.global_stores.floats == m * n
    assert one.compulsory_bytes == 4 * (m * k + k * n + m * n)
    assert one.bytes >= one.compulsory_bytes
    assert one.intensity == 2 * m * n * k / one.bytes
    assert one.total.global_loads.floats >= m * k + k * n
    for counted in (one.total, trace(version, 33, 5, 17).total):  # some lanes copy the same float
        for access in (
            counted.global_loads,
            counted.global_stores,
            counted.shared_loads,
            counted.shared_stores,
        ):
            assert access.units >= access.ideal
    assert total(one.lines.values()) == one.total
    assert trace(version, *shape) == one  # nothing is drawn
    with simulator.order(7):
        assert trace(version, *shape) == one


@pytest.mark.parametrize("shape", SHAPES)
def test_where_memory_lies_changes_no_count(version, shape, monkeypatch):
    """Workspaces included: the counts of two processes are compared as exact ones."""
    m, n, k = map(int, shape.split("x"))
    allocate = np.empty

    def counts(shift):
        monkeypatch.setattr("numpy.empty", lambda size, _: allocate(size + shift, np.uint8)[shift:])
        return trace(version, m, n, k)

    assert counts(0) == counts(16) == counts(48) == counts(112)


def test_figures_per_load_and_per_thread():
    v0, v2 = (trace(LADDER[name], 256, 64, 128).figures() for name in ("v0", "v2"))
    assert v0["fmas_per_global_load"] == 0.5  # a float of A and one of B for each
    assert v2["fmas_per_shared_load"] == 0.5
    assert v0["fmas_per_shared_load"] is None
    assert v0["barriers"] == 0
    assert v2["barriers"] == 2 * 128 / LADDER["v2"].tile[2]


def test_lines_are_the_sources(version):
    one = trace(version, 64, 64, 64)
    for (file, number), line in one.lines.items():
        text = kernel_path(file).read_text().splitlines()[number - 1]
        assert (
            not line.fmas
            or "fmaf" in text
            or "fmaf"
            in "".join(kernel_path(file).read_text().splitlines()[number - 3 : number + 2])
        )
        assert not line.barriers or "sync" in text
        assert not line.copies or "copy_async" in text


def test_a_version_of_another_folder_is_traced(tmp_path):
    """As the history is: an old commit's kernels, by this program."""
    for file in kernels_folder().iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    v1 = LADDER["v1"]
    old = replace(v1, source=str(tmp_path / v1.source))
    assert trace(old, 64, 64, 64).figures() == trace(v1, 64, 64, 64).figures()


def test_the_command(capsys):
    assert main(["trace", "--shape", "128x64x32"]) == 0
    table = capsys.readouterr().out
    assert "128×64×32" in table
    assert all(f"\n {name} " in table for name in LADDER)
    assert main(["trace", "--version", "v1", "--shape", "64x64x64"]) == 0
    assert "v1_coalesced.cu:" in capsys.readouterr().out

    assert main(["trace", "--version", "v0", "--source", str(kernel_path("template.cu")), "--shape",
                 "64x64x64", "--shape", "32x32x32", "--json"]) == 0  # fmt: skip
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "sgemm/trace/1"
    assert [row["version"] for row in document["rows"]] == ["v0", "v0", *["template.cu"] * 2]
    assert document["rows"][0]["sectors_per_global_load"] == 16.5
    lines = document["rows"][0]["lines"]
    assert {line["file"] for line in lines} == {"v0_naive.cu"}
    assert sum(line["fmas"] for line in lines) == 64**3


def test_too_large_a_product_is_refused(capsys):
    assert main(["trace", "--version", "v0", "--shape", "8192x8192x8192"]) == 2
    assert "SGEMM_SIMULATOR_LIMIT" in capsys.readouterr().err


def test_too_large_a_product_is_refused_before_its_matrices_are_allocated(monkeypatch):
    monkeypatch.delattr("sgemm.trace._aligned")
    with pytest.raises(sgemm.SimulatorLimitError):
        trace(LADDER["v0"], 8192, 8192, 8192)


@pytest.mark.parametrize("shape", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-1, 1, 1)])
def test_an_empty_product_has_no_counts(version, shape):
    with pytest.raises(sgemm.ArgumentError, match="^m, n, k: a {}x{}x{} product".format(*shape)):
        trace(version, *shape)


def test_matrices_that_do_not_fit_in_memory(monkeypatch):
    monkeypatch.setenv("SGEMM_SIMULATOR_LIMIT", "inf")
    with pytest.raises(sgemm.OutOfMemoryError, match=r"^trace: no memory left"):
        trace(LADDER["v0"], 2**24, 2**24, 1)  # more than addresses reach


# The benchmarks of the counts


@pytest.fixture
def old_package(tmp_path, monkeypatch):
    """An installed package of v0, and of a v3 of another geometry; its v1 does not compile."""
    package = tmp_path / "sgemm"
    kernels = package / "kernels"
    kernels.mkdir(parents=True)
    for file in kernels_folder().iterdir():
        (kernels / file.name).write_text(file.read_text())
    (kernels / LADDER["v1"].source).write_text("broken")
    (package / "__init__.py").write_text("raise ImportError('it needs CuPy')")
    (package / "ladder.py").write_text("""
from dataclasses import dataclass

@dataclass(frozen=True)
class Version:
    name: str
    source: str
    tile: tuple
    threads: int
    micro_tile: tuple = (1, 1)
    of_old: bool = True

LADDER = {version.name: version for version in (
    Version("v0", "v0_naive.cu", (8, 32, 1), 256),
    Version("v1", "v1_coalesced.cu", (8, 32, 1), 256),
    Version("v3", "v3_register_tile.cu", (128, 128, 16), 256, (8, 8)),
)}
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("old_package")
def test_an_old_commit_is_counted_as_it_was():
    records = Trace().setup_cache()
    assert records.keys() == {f"{name} {shape}" for name in LADDER for shape in SHAPES}
    v3 = replace(LADDER["v3"], micro_tile=(8, 8), threads=256)
    for shape in SHAPES:
        m, n, k = map(int, shape.split("x"))
        for version in (LADDER["v0"], v3):
            assert records[f"{version.name} {shape}"] == trace(version, m, n, k).figures()
        assert "does not compile" in (error := records[f"v1 {shape}"]["error"])
        assert "broken" in error
        assert records[f"v2 {shape}"] == {"skip": "this commit has no v2"}


@pytest.mark.usefixtures("old_package")
def test_without_a_compiler_nothing_is_counted(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    records = Trace().setup_cache()
    assert all("skip" in record for record in records.values())


def test_the_series_of_the_counts():
    """Each reads its figure; what a version never does is n/a, and so is a version that is not
    there."""
    shape = SHAPES[0]
    figures = trace(LADDER["v0"], 64, 64, 64).figures()
    records = {
        f"v0 {shape}": figures,
        f"v1 {shape}": {"error": "does not compile"},
        f"v2 {shape}": {"skip": "this commit has no v2"},
    }
    suite = Trace()
    names = [name.removeprefix("track_") for name in dir(suite) if name.startswith("track_")]
    assert set(names) <= figures.keys()
    for name in names:
        track = getattr(suite, f"track_{name}")
        suite.setup(records, "v0", shape)
        found = track(records, "v0", shape)
        assert found == figures[name] or (isnan(found) and figures[name] is None)
        suite.setup(records, "v1", shape)
        with pytest.raises(RuntimeError, match="does not compile"):
            track(records, "v1", shape)
    assert isnan(suite.track_wavefronts_per_shared_load(records, "v0", shape))
    with pytest.raises(NotImplementedError, match="no v2"):
        suite.setup(records, "v2", shape)


def test_atomic_operations_are_neither_loads_nor_stores(tmp_path):
    """A GPU counts them apart."""
    source = tmp_path / "arrivals.cu"
    source.write_text(
        '#include "portable.cuh"\n'
        'extern "C" __global__ void arrivals(int* counts, int* before) {\n'
        "    before[threadIdx.x] = atomicAdd(&counts[threadIdx.x], 2);\n"
        "}\n"
    )
    counts, before = np.full(64, 5, np.int32), np.zeros(64, np.int32)
    with simulator.counted() as launches:
        arguments = np.uintp(counts.ctypes.data), np.uintp(before.ctypes.data)
        simulator.launch(source, "arrivals", {}, 1, 64, arguments)
    assert (counts == 7).all()
    assert (before == 5).all()
    one = total(launches[0].lines.values())
    assert one.global_loads.requests == 0
    assert one.global_stores.requests == 2


def rows_of(lanes, pitch, floats):
    """C++ for the byte offset of a lane, in rows of so many lanes, ``pitch`` bytes apart."""
    return f"lane / {lanes} * {pitch} + lane % {lanes} * {4 * floats}"


FLOAT4S, FLOATS = rows_of(32, 0, 4), rows_of(32, 0, 1)
TO_LONG_ROWS, TO_SHORT_ROWS = (f"lane % 8 * {pitch} + lane / 8 * 4" for pitch in (528, 288))

OF_ZEROS = {
    (rows_of(4, 1024, 4), rows_of(4, 64, 4)): 8,
    (rows_of(4, 1024, 4), rows_of(4, 80, 4)): 12,
    (rows_of(4, 1024, 4), rows_of(4, 96, 4)): 12,
    (rows_of(2, 1024, 4), rows_of(2, 48, 4)): 20,
    ("lane * 1024", FLOAT4S): 32,
    ("lane % 8 * 16", "lane * 128"): 32,
}
"""Source and target to the wavefronts by which the H200 counts more for a copy of any size: 4 for
the others."""


# What Nsight Compute 2025.3 counts on an H200 for one warp's copy: l1tex__t_sectors_pipe_lsu_mem_
# global_op_ld, and smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.
@pytest.mark.parametrize(
    ("width", "source", "target", "sectors", "wavefronts"),
    [
        (4, FLOAT4S, FLOAT4S, 16, 4),
        (4, f"16 + {FLOAT4S}", FLOAT4S, 20, 12),
        (4, f"32 + {FLOAT4S}", FLOAT4S, 16, 8),
        (4, f"48 + {FLOAT4S}", FLOAT4S, 20, 16),
        (4, f"112 + {FLOAT4S}", FLOAT4S, 20, 12),
        (4, FLOAT4S, f"16 + {FLOAT4S}", 20, 12),
        (4, f"16 + {FLOAT4S}", f"16 + {FLOAT4S}", 17, 6),
        (4, f"80 + {FLOAT4S}", f"16 + {FLOAT4S}", 17, 10),
        (4, f"80 + {FLOAT4S}", f"48 + {FLOAT4S}", 17, 11),
        (4, rows_of(8, 1024, 4), rows_of(8, 128, 4), 16, 4),
        (4, rows_of(8, 1024, 4), rows_of(8, 144, 4), 18, 10),
        (4, rows_of(8, 1024, 4), rows_of(8, 576, 4), 16, 6),
        (4, rows_of(8, 1024, 4), f"96 + {rows_of(8, 576, 4)}", 16, 8),
        (4, rows_of(4, 1024, 4), rows_of(4, 64, 4), 16, 8),
        (4, rows_of(4, 1024, 4), rows_of(4, 80, 4), 20, 15),
        (4, rows_of(4, 1024, 4), rows_of(4, 96, 4), 16, 10),
        (4, rows_of(2, 1024, 4), rows_of(2, 48, 4), 24, 24),
        (4, "lane * 1024", FLOAT4S, 32, 32),
        (4, "lane % 8 * 16", "lane * 128", 32, 32),
        (4, f"4800 + {rows_of(8, 1200, 4)}", f"96 + {rows_of(8, 576, 4)}", 18, 17),
        (1, FLOATS, FLOATS, 4, 1),
        (1, f"4 + {FLOATS}", FLOATS, 5, 1),
        (1, rows_of(8, 1024, 1), TO_LONG_ROWS, 4, 4),
        (1, rows_of(8, 1024, 1), TO_SHORT_ROWS, 4, 5),
        (1, f"16 + {rows_of(8, 1040, 1)}", TO_SHORT_ROWS, 6, 3),
        (1, rows_of(8, 1024, 1), "lane % 8 * 256 + lane / 8 * 4", 4, 11),
        (1, rows_of(8, 1200, 1), TO_LONG_ROWS, 6, 2),
        (1, rows_of(8, 2080, 1), TO_LONG_ROWS, 4, 1),
        (1, "lane % 8 * 4", TO_LONG_ROWS, 1, 4),
        (1, rows_of(16, 1024, 1), rows_of(16, 544, 1), 4, 3),
        (1, FLOATS, "lane * 128", 4, 32),
    ],
)
@pytest.mark.parametrize("any_size", [False, True])
def test_copies_cost_what_an_h200_counts(
    tmp_path, width, source, target, sectors, wavefronts, any_size
):
    """A copy of a number of float4s that the compiler does not know is one of zeros as well."""
    kernel = tmp_path / "copies.cu"
    kernel.write_text(
        '#include "portable.cuh"\n'
        'extern "C" __global__ void copies(const float* global, int valid) {\n'
        "    __shared__ alignas(16) char shared[16384];\n"
        "    const int lane = threadIdx.x;\n"
        f"    copy_async<{width}>(reinterpret_cast<float*>(shared + ({target})),\n"
        f"        global + ({source}) / 4, {'valid' if any_size else width});\n"
        "}\n"
    )
    memory = np.zeros(16384 + 32, np.float32)
    address = -(-memory.ctypes.data // 128) * 128
    with simulator.counted() as launches:
        simulator.launch(kernel, "copies", {}, 1, 32, (np.uintp(address), np.int32(width)))
    one = total(launches[0].lines.values())
    assert (one.global_loads.requests, one.shared_stores.requests) == (1, 1)
    assert one.global_loads.units == sectors
    of_zeros = OF_ZEROS.get((source, target), 4) if any_size and width == 4 else 0
    assert one.shared_stores.units == wavefronts + of_zeros


def test_lanes_that_copy_zeros_alone_read_nothing(tmp_path):
    kernel = tmp_path / "copies.cu"
    kernel.write_text(
        '#include "portable.cuh"\n'
        'extern "C" __global__ void copies(const float* global, int some) {\n'
        "    __shared__ alignas(16) float shared[256];\n"
        "    const int lane = threadIdx.x;\n"
        "    copy_async<4>(&shared[4 * lane], global, lane < some ? 4 : 0);\n"
        "    copy_async<4>(&shared[4 * lane], global + 4 * lane, lane < some ? 0 : 4);\n"
        "}\n"
    )
    memory = np.zeros(256, np.float32)
    with simulator.counted() as launches:
        arguments = np.uintp(memory.ctypes.data), np.int32(0)
        simulator.launch(kernel, "copies", {}, 1, 32, arguments)
    one = total(launches[0].lines.values())
    assert (one.global_loads.requests, one.shared_stores.requests) == (1, 2)
    assert one.global_loads.floats == 128


def test_requests_of_lanes_that_skip_some_are_exact_in_unrolled_loops(tmp_path):
    """Odd and even lanes take turns: their n-th accesses are in different steps."""
    kernel = tmp_path / "skips.cu"
    kernel.write_text(
        '#include "portable.cuh"\n'
        'extern "C" __global__ void skips(float* out, int turns) {\n'
        "    UNROLL\n"
        "    for (int i = 0; i < 4; ++i)\n"
        "        if (turns >> (2 * i + threadIdx.x % 2) & 1) out[i * 32 + threadIdx.x] = 0.0f;\n"
        "}\n"
    )
    memory = np.zeros(128 + 8, np.float32)
    address = -(-memory.ctypes.data // 32) * 32
    with simulator.counted(unrolled=True) as launches:
        arguments = np.uintp(address), np.int32(0b10_01_10_01)
        simulator.launch(kernel, "skips", {}, 1, 32, arguments)
    one = total(launches[0].lines.values())
    assert (one.global_stores.requests, one.global_stores.units) == (4, 16)


def test_each_thread_has_its_own_number_of_sms():
    """Whoever traces for a GPU changes nothing for others."""
    with simulated_sms(2), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: Simulated().hardware.multiprocessors).result() == SMS
        assert Simulated().hardware.multiprocessors == 2
    assert Simulated().hardware.multiprocessors == SMS
