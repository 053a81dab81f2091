"""The ceiling model, against arithmetic done by hand and against all that the H200 recorded."""

import json
import re
from dataclasses import replace
from itertools import product
from math import isnan
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as command
from benchmarks import ceiling as beside
from benchmarks.checkout import ROOT
from benchmarks.problems import PROBLEMS, Problem, parse
from sgemm import LADDER, ArgumentError, inspection, sass
from sgemm.ceiling import GPUS, Gpu, ceiling, gpu_named
from sgemm.choices import choose
from sgemm.ladder import names_for
from sgemm.occupancy import MULTIPROCESSORS, Occupancy

pytest.importorskip("cuda.bindings.nvrtc")
if sass.find_disassembler() is None:
    pytest.skip("there is no nvdisasm", allow_module_level=True)

H200 = gpu_named("H200")
MACHINE = "nvidia-h200"
ARTICLE = PROBLEMS["4096x4096x4096"]


# By hand: a kernel of 128x128 tiles with 2,048 FFMA in 2,400 instructions, two blocks per SM.

COUNTS = sass.Counts(
    instructions=2400,
    ffma=2048,
    fmul=0,
    fadd=0,
    unfused=0,
    global_loads={},
    shared_loads={128: 96},
    shared_stores=0,
    asynchronous_copies={128: 8},
    bulk_copies=0,
    local_accesses=0,
    barriers=1,
    addresses=100,
    branches=1,
)
MADE_UP = SimpleNamespace(
    loop=COUNTS,
    producer_loop=None,
    dispatch_cycles=2560,
    warp_cycles=2560,
    pauses=(),
    occupancy=Occupancy(2, 8, 0.125, "registers"),
)
V4 = LADDER["v4"]
GPU = Gpu("made up", "sm_90", sms=100, mhz=1000, gigabytes_per_second=1000)


def made_up(m, n, k, gpu=GPU, **figures):
    counted = {name: figures.pop(name) for name in [*figures] if name in vars(COUNTS)}
    loop = replace(COUNTS, **counted)
    return ceiling(V4, SimpleNamespace(**{**vars(MADE_UP), "loop": loop, **figures}), gpu, m, n, k)


def test_whole_waves_leave_the_mix_of_instructions():
    found = made_up(1280, 1280, 4096)  # 100 tiles on 100 SMs
    assert found.limits["tiles"] == 1
    assert found.limits["issue slots"] == 2048 / 2400
    assert found.limits["operands"] == found.share == 2048 / 2560
    assert found.limit == "operands"
    assert found.resident_blocks == 1


def test_the_last_wave():
    assert made_up(1281, 1280, 4096).limits["tiles"] == pytest.approx(1281 / 1280 / 2)
    assert made_up(12800, 1280, 4096).limits["tiles"] == 1


def test_tiles_past_the_edges():
    assert made_up(1, 1, 1).limits["tiles"] == 1 / (100 * 128 * 128 * 16)


def test_loads_occupy_the_load_store_unit():
    found = made_up(1280, 1280, 4096, shared_loads={32: 2000, 128: 40}, shared_stores=8)
    assert found.limits["load/store unit"] == 2048 / (4 * (2000 + 40 + 8 + 8))
    assert found.limit == "load/store unit"


def test_a_warp_alone_waits_for_global_memory():
    loads = {"global_loads": {128: 8}, "asynchronous_copies": {}}
    assert made_up(1280, 1280, 4096, **loads).share == 2048 / (2560 + 200)
    assert made_up(12800, 1280, 4096, **loads).share == 2048 / 2560  # two blocks hide it


def test_a_warp_alone_is_stalled():
    assert made_up(1280, 1280, 4096, warp_cycles=3000).limits["resident warps"] == 2048 / 3000
    assert made_up(12800, 1280, 4096, warp_cycles=3000).limits["resident warps"] == 1


def test_warps_that_only_copy_take_issue_slots():
    """Of eight warps that multiply and four that copy, each of the eight shares half a copier."""
    v6 = replace(V4, tile=(128, 256, 16), threads=384)
    copies = replace(COUNTS, instructions=900, ffma=0, asynchronous_copies={128: 600})
    found = SimpleNamespace(**{**vars(MADE_UP), "producer_loop": copies})
    limits = ceiling(v6, found, GPU, 1280, 2560, 4096).limits
    assert limits["issue slots"] == 2048 / (2400 + 900 / 2)
    assert limits["operands"] == 2048 / 2560
    requests = 96 + 8 + (96 + 600) / 2
    assert limits["load/store unit"] == min(1, 2048 / (4 * requests))
    assert limits["resident warps"] == min(1, 2 * 2048 / (2400 + 900 / 2))


def test_a_block_alone_pauses_at_its_barriers():
    """The one warp of a scheduler has 100 instructions in the 400 cycles around the barrier."""
    pauses = {"pauses": ((100, 400), (50, 50))}
    found = made_up(1280, 1280, 4096, **pauses)
    assert found.share == found.limits["barriers"] == 2048 / (2560 + 400 - 100)
    assert found.limit == "barriers"
    assert made_up(12800, 1280, 4096, **pauses).share == 2048 / 2560  # the other block goes on


def test_blocks_that_share_tiles_have_no_last_wave():
    stream_k = replace(V4, stream_k=True)
    for m in (1408, 1152):  # 110 tiles on 100 SMs, and 90
        found = ceiling(stream_k, MADE_UP, GPU, m, 1280, 4096)
        assert found.limits["tiles"] == pytest.approx(1)
        assert found.resident_blocks == 2


def test_blocks_that_share_few_tiles_leave_the_other_sms_idle():
    """Shares that are too small cost more than they save: the plan has fewer blocks than SMs."""
    stream_k = replace(V4, stream_k=True)
    plan = stream_k.plan(256, 256, 256, GPU.sms)
    assert (plan.blocks, plan.shared_tiles) == (16, 4)
    found = ceiling(stream_k, MADE_UP, GPU, 256, 256, 256)
    assert found.limits["tiles"] == pytest.approx(16 / 100)


def test_blocks_that_share_no_tiles_have_a_last_wave():
    """For so few steps of k it would cost more."""
    stream_k = replace(V4, stream_k=True)
    assert stream_k.plan(1408, 1280, 16, GPU.sms).shared_tiles == 0
    limits = ceiling(stream_k, MADE_UP, GPU, 1408, 1280, 16).limits
    assert limits["tiles"] == pytest.approx(1.1 / 2)


def test_memory_limits_what_is_hardly_computed():
    found = made_up(1280, 12800, 1)
    seconds = 4 * (1280 + 12800 + 1280 * 12800) / 1e12
    assert found.limit == "memory"
    assert found.share == pytest.approx(2 * 1280 * 12800 / (GPU.peak_gflops * 1e9) / seconds)


def test_half_as_many_lanes_hide_every_other_instruction():
    found = made_up(1280, 1280, 4096, gpu=replace(GPU, arch="sm_80"))
    assert found.limits["operands"] == 1
    assert GPU.peak_gflops == 2 * replace(GPU, arch="sm_80").peak_gflops == 2 * 100 * 128


def test_measured_waits_count_where_the_scheduler_is_the_limit():
    two_blocks = made_up(12800, 1280, 4096)
    assert two_blocks.after_stalls(0.1) == pytest.approx(two_blocks.share * 0.8)
    assert two_blocks.after_stalls(0.9) == 0
    loads = made_up(12800, 1280, 4096, shared_loads={32: 4096})
    assert loads.after_stalls(0.5) == loads.share


def test_what_has_no_ceiling():
    with pytest.raises(ArgumentError, match="no block"):
        made_up(1, 1, 1, occupancy=Occupancy(0, 0, 0.0, "registers"))
    with pytest.raises(ArgumentError, match="no loop"):
        made_up(1, 1, 1, ffma=0)


def test_gpus():
    assert {gpu.arch for gpu in GPUS} <= set(MULTIPROCESSORS)
    assert H200.name == "NVIDIA H200"
    for text in ("voodoo", "rtx"):
        with pytest.raises(ArgumentError, match=f"{text}.*RTX 4090"):
            gpu_named(text)


# Against the H200.


def recorded():
    """All that the repository has of the speed on the H200: version, with the tiles that it had,
    problem, and the share of the FFMA peak that was measured with it, or else of the computed one.
    """
    shares = []
    units = {"track_share_of_peak": 1.0, "track_gflops": H200.peak_gflops}
    for path in (ROOT / "results" / MACHINE).glob("*-*.json"):
        for name, columns in json.loads(path.read_text())["results"].items():
            unit = units.get(name.rpartition(".")[2])
            if unit is None or not columns[0]:
                continue
            values, parameters = columns[:2]
            for pair, value in zip(product(*parameters), values, strict=True):
                if value is not None and not isnan(value):
                    version, problem, *_ = (text.strip("'") for text in pair)
                    shares.append((version, problem, value / unit))
    table = json.loads((ROOT / "docs" / f"table-{MACHINE}.json").read_text())
    problem = table["environment"]["problem"]
    shares += [(r["version"], problem, r["share_of_peak"]) for r in table["rows"]]
    found = [
        (LADDER[v], PROBLEMS[p], share) for v, p, share in shares if v in LADDER and p in PROBLEMS
    ]
    sweep = json.loads((ROOT / "docs" / f"sweep-{MACHINE}.json").read_text())
    for row in sweep["rows"]:
        problem = parse(re.match(r"\d+x\d+x\d+", row["problem"])[0])
        shape = problem.m, problem.n, problem.k
        version = choose(names_for((9, 0)), *shape, sweep["environment"]["gpu"], H200.sms)
        assert (version.name, list(version.tile)) == (row["version"], row["tile"])
        found.append((version, problem, row["gflops"] / H200.peak_gflops))
    return found


def ceiling_of(version, problem):
    found = inspection.inspect(version, H200.arch)
    return ceiling(version, found, H200, problem.m, problem.n, problem.k)


def test_the_ceiling_is_above_every_measured_figure():
    shares = recorded()
    assert len(shares) > 100
    for version, problem, share in shares:
        assert share <= ceiling_of(version, problem).share, (version.name, version.tile, problem)


def rows():
    return {row["version"]: row for row in beside.rows(H200, ARTICLE)}


def test_from_v3_on_it_is_within_15_percent_with_the_measured_waits_where_they_are_known():
    found = [row for name, row in rows().items() if name not in ("v0", "v1", "v2")]
    measured = [row for row in found if row["measured"]]
    assert {row["version"] for row in measured} == set(LADDER) - {"v0", "v1", "v2"}
    for row in measured:
        limit = row["ceiling_after_stalls"] or row["ceiling"]
        assert 1 <= limit / row["measured"] <= 1.15, row["version"]


def test_what_removing_the_waits_gains_is_as_measured():
    """v3 waits where v4 need not, and they differ in little else."""
    found = rows()
    ceilings, measured = (
        found["v4"][kind] / found["v3"][kind] for kind in ("ceiling_after_stalls", "measured")
    )
    assert ceilings == pytest.approx(measured, rel=0.02)


def test_the_page_states_what_the_model_says():
    """Its table is written by hand: to a per cent."""
    page = (ROOT / "docs" / "ceiling.md").read_text()
    found = rows()
    percent = r"([\d.]+) %"
    row_of = rf"^\| (v\d+) \| {percent} \| ([^|]+) \| {percent} \| ([\d.]+ %|–) \| {percent} \|$"
    stated = re.findall(row_of, page, re.MULTILINE)
    assert {name for name, *_ in stated} >= {name for name, row in found.items() if row["measured"]}
    for name, share, limit, measured, after_stalls, above in stated:
        row = found[name]
        assert float(share) == pytest.approx(100 * row["ceiling"], abs=1)
        assert limit == row["limit"]
        assert float(measured) == pytest.approx(100 * row["measured"], abs=1)
        assert (after_stalls == "–") == (row["ceiling_after_stalls"] is None)
        lowest = row["ceiling_after_stalls"] or row["ceiling"]
        if row["ceiling_after_stalls"]:
            assert float(after_stalls[:-2]) == pytest.approx(100 * lowest, abs=1)
        if name not in ("v0", "v1"):  # so slow that a per cent of the peak is a multiple of them
            assert float(above) == pytest.approx(100 * (lowest / row["measured"] - 1), abs=2)


# The command.


def run(capsys, *arguments):
    status = command.main(["ceiling", *arguments])
    output = capsys.readouterr()
    return status, output.out, output.err


def test_the_table(capsys):
    status, output, _ = run(capsys)
    assert status == 0
    assert "NVIDIA H200" in output
    found = rows()["v4"]
    for figure in (found["ceiling"], found["measured"], found["ceiling_after_stalls"]):
        assert f"{figure:.1%}" in output


def test_a_gpu_that_nobody_measured(capsys):
    status, output, _ = run(capsys, "--gpu", "A100", "--problem", "1000x1000x1000", "--json")
    document = json.loads(output)
    assert status == 0
    assert document["environment"]["gpu"] == "NVIDIA A100-SXM4-80GB"
    for row in document["rows"]:
        assert 0 < row["ceiling"] <= 1
        assert row["measured"] is None


def test_another_problem_than_the_profiled_one():
    for row in beside.rows(H200, Problem(1024, 1024, 1024)):
        assert row["ceiling_after_stalls"] is None


def test_a_name_that_fits_several(capsys):
    status, _, errors = run(capsys, "--gpu", "rtx")
    assert status == 2
    assert "rtx" in errors
