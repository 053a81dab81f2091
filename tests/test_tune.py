"""``python -m benchmarks tune``."""

import json
from collections import Counter
from dataclasses import replace

import pytest

import sgemm
from benchmarks import __main__ as command
from benchmarks import sweep, tune
from benchmarks.problems import Problem
from benchmarks.timing import BLOCKS
from sgemm import LADDER, choices, inspection, ladder, sass
from sgemm.ceiling import ceiling, gpu_named

pytest.importorskip("cuda.bindings.nvrtc")
if sass.find_disassembler() is None:
    pytest.skip("there is no nvdisasm", allow_module_level=True)

pytest_plugins = ["fake_gpu"]

SMALL = "65x66x20"


@pytest.fixture
def few(monkeypatch):
    """Of v3 two tiles, and as many micro-tiles, of its own depth."""
    monkeypatch.setattr(tune, "TILES", ((64, 64), (128, 128)))
    monkeypatch.setattr(tune, "MICRO_TILES", ((8, 8), (16, 8)))
    monkeypatch.setattr(tune, "DEPTHS", (1,))


def run(capsys, *arguments, version="v3"):
    status = command.main(["tune", f"--version={version}", *arguments])
    return status, capsys.readouterr()


def rows_of(printed, version=None):
    rows = json.loads(printed.out)["rows"]
    return [row for row in rows if version in (None, row["version"])]


def reshaped(name, **changed):
    version = LADDER[name]
    keys = ("tile", "micro_tile", "blocks_per_sm", "stages", "slices")
    return version.reshaped(**{key: changed.get(key, getattr(version, key)) for key in keys})


# Candidates.


def test_a_version_with_its_own_tiles_is_itself(version):
    assert reshaped(version.name) == version


def test_what_follows_from_a_tile_is_derived():
    v3 = reshaped("v3", tile=(64, 64, 16), micro_tile=(8, 8))
    assert (v3.threads, v3.dynamic_shared_bytes) == (64, 0)
    v6 = reshaped("v6", tile=(128, 128, 8))
    assert v6.threads == 128 + 128  # as many copy as in v6
    v8 = reshaped("v8", tile=(128, 128, 16), stages=2, slices=2)
    assert v8.threads == 256 + 128
    assert v8.dynamic_shared_bytes == 4 * 2 * 16 * (128 + 16 + 128 + 16)


def test_the_ladders_tiles_come_first_and_each_once(version):
    found = tune.with_other_tiles(version)
    assert found[0] == version
    assert len(set(found)) == len(found) > 1 or version.tile[2] == 1


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("v7", {((256, 128), (16, 8)), ((128, 128), (8, 8))}),
        ("v8", {((128, 64), (16, 8)), ((32, 256), (16, 8)), ((64, 64), (16, 4))}),
        ("v9", {((32, 32), (8, 4)), ((64, 32), (16, 4)), ((32, 128), (8, 16))}),
    ],
)
def test_mirrored_and_small_tiles_where_the_threads_are_given(name, offered):
    version = LADDER[name]
    found = tune.with_other_tiles(version)
    assert len({one.tile[:2] for one in found}) == len(
        {(one.tile[:2], one.micro_tile, one.slices) for one in found}
    )
    assert {one.threads for one in found} == {version.threads}
    assert {one.tile[2] % 8 for one in found} == {0}
    assert offered <= {(one.tile[:2], one.micro_tile) for one in found}


@pytest.mark.parametrize(("name", "counts"), [("v7", {1}), ("v8", {1}), ("v9", {1, 2, 3})])
def test_a_kernel_that_deals_out_registers_keeps_its_blocks_per_sm(name, counts):
    """Two blocks of v7 would wait for each other's registers for ever."""
    found = tune.with_other_tiles(LADDER[name])
    assert {one.blocks_per_sm for one in found} == counts


@pytest.mark.parametrize("tile", [(64, 64), (128, 128)])
def test_the_tiles_of_the_article(tile):
    """Whether v3 loses with the larger ones, through occupancy, can be told from the table."""
    with_tile = [one for one in tune.with_other_tiles(LADDER["v3"]) if one.tile[:2] == tile]
    examined = [tune.examine(LADDER["v3"], one, "sm_90") for one in with_tile]
    assert any(one.found and one.found.occupancy.share and not one.pruned for one in examined)


@pytest.mark.parametrize(
    ("name", "changed", "reason"),
    [
        ("v3", {"tile": (64, 48, 16)}, "TILE_N must be a multiple"),
        ("v3", {"blocks_per_sm": 4}, "spills"),
        ("v5", {"tile": (128, 256, 32)}, "48 KiB"),
        ("v6", {"tile": (128, 128, 8)}, "256 threads; it is for 384"),
        ("v8", {"stages": 4, "slices": 2, "tile": (128, 128, 64)}, "must fit an SM"),
        ("v3", {"tile": (64, 64, 16), "blocks_per_sm": 8}, "THREADS must be a multiple"),
    ],
)
def test_what_cannot_be_or_spills_is_pruned_with_the_reason(name, changed, reason):
    candidate = tune.examine(LADDER[name], reshaped(name, **changed), "sm_90")
    assert reason in candidate.pruned


def test_what_does_not_fit_an_sm_as_often_as_asked_for_is_pruned():
    v8 = reshaped("v8", tile=(64, 128, 64), stages=3)  # 162 KiB, and an SM of 8.9 has 100
    assert tune.examine(LADDER["v8"], v8, "sm_90").pruned is None
    v3 = reshaped("v3", tile=(128, 128, 8), blocks_per_sm=1, micro_tile=(8, 8))
    found = tune.examine(LADDER["v3"], v3, "sm_90").found
    assert tune._why_not(reshaped("v3", blocks_per_sm=3), found).startswith("an SM holds ")


def test_what_has_no_loop_is_pruned(monkeypatch):
    """Nothing can be predicted of it."""
    monkeypatch.setattr(sass, "main_loop", lambda instructions: [])
    monkeypatch.setattr(inspection, "_reader", lambda: "one that finds no loops")
    assert tune.examine(LADDER["v9"], LADDER["v9"], "sm_90").pruned.endswith("no loop with FFMA")


def test_the_same_machine_code_is_timed_once():
    """Three blocks or four, v5 with tiles of 64×64 has all registers that it can use."""
    tried = [
        tune.examine(LADDER["v5"], reshaped("v5", tile=(64, 64, 8), blocks_per_sm=blocks), "sm_90")
        for blocks in (4, 3, 9)
    ]
    assert [one.pruned for one in tried[:2]] == [None, None]
    first, second, third = tune.without_repetitions(tried)
    assert (first, third) == (tried[0], tried[2])
    assert second.pruned == "the same machine code as for 4 blocks/SM"


# Predictions.

H200 = gpu_named("H200")


def predicted(version, *shape, gpu=H200):
    limit = ceiling(version, tune.examine(version, version, "sm_90").found, gpu, *shape)
    return tune.predicted_seconds(version, limit, Problem(*shape), gpu)


@pytest.mark.parametrize(
    ("name", "shape", "microseconds"),
    [  # docs/sweep.md
        ("v7", (8192, 8192, 8192), 19_782),
        ("v7", (2048, 2048, 2048), 323.8),
        ("v8", (1024, 1024, 1024), 47.7),
        ("v8", (512, 512, 512), 16.3),
        ("v8", (128, 128, 128), 11.5),
        ("v8", (64, 4096, 4096), 52.5),
        ("v8", (8192, 16, 8192), 368.3),
    ],
)
def test_predictions_are_right_within_the_factor_that_prunes(name, shape, microseconds):
    seconds = predicted(LADDER[name], *shape)
    assert seconds < microseconds / 1e6 < tune.FAR * seconds


def test_what_the_prediction_knows():
    v8, v9 = LADDER["v8"], LADDER["v9"]
    assert predicted(v9, 256, 256, 256) < predicted(v8, 256, 256, 256)  # too few tiles of v8's
    assert predicted(v9, 4096, 4096, 4096) > predicted(v8, 4096, 4096, 4096)  # more per FFMA
    assert predicted(v9, 64, 64, 65536) > 5 * predicted(v8, 64, 64, 65536)  # shares no tiles
    # Half of a tile of 64 rows is wasted.
    assert predicted(v8, 32, 65536, 1024) == pytest.approx(predicted(v8, 64, 65536, 1024))
    slow_memory = replace(H200, gigabytes_per_second=1)
    through_memory = tune.START_SECONDS + 4 * 3 * 512**2 / 1e9
    assert predicted(v8, 512, 512, 512, gpu=slow_memory) == pytest.approx(through_memory)


# Without a GPU.


def test_without_a_gpu_the_predictions_rank(few, capsys, monkeypatch):
    monkeypatch.setattr(tune.gpu, "find", lambda: None)
    status, printed = run(capsys, "--json", "--problem=4096x4096x4096", "--problem=512x512x512")
    document = json.loads(printed.out)
    assert status == 0
    assert document["schema"] == "benchmarks/tune/1"
    assert document["environment"]["gpu"] == "NVIDIA H200"
    assert document["environment"]["timed"] is False
    large = [row for row in document["rows"] if row["problem"] == "4096x4096x4096"]
    assert len(large) == len(document["rows"]) / 2
    survivors = [row for row in large if not row["pruned"]]
    figures = [row["predicted_gflops"] for row in survivors]
    assert figures == sorted(figures, reverse=True)
    assert large[: len(survivors)] == survivors
    assert {tuple(row["tile"][:2]) for row in survivors} >= {(64, 64), (128, 128)}
    assert all(row["gflops"] is None for row in document["rows"])


def test_what_is_predicted_to_be_far_slower_is_pruned(few, capsys, monkeypatch):
    monkeypatch.setattr(tune, "FAR", 1)
    _, printed = run(capsys, "--json", "--gpu=H200")
    rows = rows_of(printed)
    best = max(row["predicted_gflops"] or 0 for row in rows)
    for row in rows:
        if row["predicted_gflops"]:
            assert (row["pruned"] is None) == (row["predicted_gflops"] == best)
    assert any("predicted to take 1." in (row["pruned"] or "") for row in rows)


def test_versions_are_compared_with_each_other(few, capsys, monkeypatch):
    """At 4096×4096×4096, v3 as a whole is far behind v9."""
    for constant, only in (("TILES_OF_THREADS", ((32, 64),)), ("STAGES", (3,))):
        monkeypatch.setattr(tune, constant, only)
    monkeypatch.setattr(tune, "FAR", 1.01)
    _, printed = run(capsys, "--json", "--gpu=H200", "--version=v9", "--problem=256x256x256")
    assert {row["version"] for row in rows_of(printed) if not row["pruned"]} == {"v9"}


def test_the_problems_of_the_sweep(few, capsys, monkeypatch):
    monkeypatch.setattr(tune, "MICRO_TILES", ())
    _, printed = run(capsys, "--json", "--gpu=H200", "--sweep", "--problem=128x128x128")
    swept = {problem.name for problem in sweep.PROBLEMS}
    problems = {row["problem"] for row in rows_of(printed)}
    assert swept - problems == {"4096x4096x4096 A+1", "4096x4096x4096 B column-major"}
    assert problems < swept


def test_people_are_told_that_nothing_was_timed(few, fake_gpu, capsys):
    status, printed = run(capsys, "--gpu=rtx 4090")
    assert status == 0
    assert "NVIDIA GeForce RTX 4090" in printed.out
    assert "Nothing was timed" in printed.out
    assert "128×128×16" in printed.out


def test_people_see_what_is_left_and_how_many_are_not(few, capsys, monkeypatch):
    monkeypatch.setattr(tune, "FAR", 1)  # all but the best
    _, printed = run(capsys, "--gpu=H200", "--problem=64x64x64")
    assert printed.out.count("│ v3 ") == 1
    _, as_json = run(capsys, "--gpu=H200", "--problem=64x64x64", "--json")
    rows = rows_of(as_json)
    assert f"\n{len(rows) - 1} of {len(rows)} candidates are not shown; --json has them:\n" in (
        printed.out
    )
    slower = sum("predicted to take" in (row["pruned"] or "") for row in rows)
    assert f"\n{slower:6}  predicted to take … times as long as the best\n" in printed.out


def test_reasons_that_differ_in_their_figures_are_counted_as_one():
    reasons = ["fits 48 KiB", "spills 8 bytes", "takes 1.5 times", "spills 16 bytes", "fits 48 KiB"]
    reasons += ["spills 8 bytes"]
    assert list(tune.counted(reasons).items()) == [
        ("spills … bytes", 3),
        ("fits 48 KiB", 2),
        ("takes 1.5 times", 1),
    ]


def test_people_see_what_was_timed(few, fake_gpu, capsys):
    """Also in a short sample only."""
    _, printed = run(capsys, f"--problem={SMALL}")
    assert "slower in a short sample" in printed.out.partition("are not shown")[0]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--save=choices.json"], "nothing is timed"),
        (["--version=v99"], "no 'v99'"),
        (["--version=v6", "--gpu=A100"], "v6 needs compute capability 9.0"),
        (["--problem=4096x4096x4096 A+1"], "more than a shape"),
        (["--gpu=voodoo"], "voodoo"),
    ],
)
def test_what_cannot_be_told(arguments, reason, capsys, monkeypatch):
    monkeypatch.setattr(tune.gpu, "find", lambda: None)
    status, printed = run(capsys, *arguments)
    assert status == 2
    assert reason in printed.err


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1", "soon"])
def test_seconds_that_are_none(capsys, seconds):
    with pytest.raises(SystemExit) as ended:
        run(capsys, f"--seconds={seconds}")
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"python -m benchmarks tune: argument --seconds: {seconds!r} is not a positive number\n"
    )


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("nowhere/choices.json", "No such file or directory"),
        (".", "it is no file"),
        ("/dev/null", "it is no file"),
        ("/dev/full/choices.json", "Not a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_found_before_anything_is_timed(
    few, fake_gpu, capsys, monkeypatch, tmp_path, file, reason
):
    monkeypatch.setattr(tune, "_time", pytest.fail)
    path = tmp_path / file
    status, printed = run(capsys, f"--problem={SMALL}", f"--save={path}")
    assert status == 2
    assert printed.err == f"python -m benchmarks: --save: {path} cannot be written: {reason}\n"


def test_whether_a_file_can_be_written_leaves_it_as_it_is(fake_gpu, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(tune, "_time", lambda *arguments: 0)
    old = tmp_path / "old.json"
    old.write_text("of before")
    for path in (old, tmp_path / "new.json"):
        assert run(capsys, f"--problem={SMALL}", f"--save={path}")[0] == 0
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("old.json", "of before")
    ]


def test_a_gpu_that_has_to_be_there(capsys, monkeypatch):
    monkeypatch.setattr(tune.gpu, "find", lambda: None)
    monkeypatch.setenv("SGEMM_REQUIRE_GPU", "1")
    status, printed = run(capsys)
    assert status == 2
    assert "SGEMM_REQUIRE_GPU=1" in printed.err


# On a GPU.


def by_the_rule(*shape):
    return ladder.fastest(tuple(LADDER), *shape, 1)


def test_what_is_left_is_timed(few, fake_gpu, capsys, monkeypatch):
    monkeypatch.setattr(tune, "CLOSE", 1000)
    status, printed = run(capsys, "--json", f"--problem={SMALL}")
    document = json.loads(printed.out)
    assert status == 0
    assert document["environment"]["timed"] is True
    rows = document["rows"]
    finalists = [row for row in rows if not row["pruned"]]
    assert rows[: tune.FINALISTS] == finalists
    assert all(len(row["seconds"]) >= BLOCKS for row in finalists)
    gflops = [row["gflops"] for row in finalists]
    assert gflops == sorted(gflops, reverse=True)
    dropped = [row for row in rows if row["pruned"] == "slower in a short sample"]
    assert dropped
    assert all(row["gflops"] and len(row["seconds"]) == 1 for row in dropped)
    for row in rows:
        assert bool(row["seconds"]) == bool(row["gflops"]) == (row in finalists + dropped)


def test_what_matmul_takes_by_its_rule_is_always_timed(few, fake_gpu, capsys, monkeypatch):
    """Though it is another version, and predicted to be slower than the best."""
    monkeypatch.setattr(tune, "FAR", 0)
    _, printed = run(capsys, "--json", f"--problem={SMALL}")
    (timed,) = (row for row in rows_of(printed) if row["gflops"])
    assert timed["by_rule"]
    assert timed["version"] == by_the_rule(65, 66, 20) != "v3"
    assert timed["tile"] == list(LADDER[timed["version"]].tile)


def test_tiles_contend_with_those_of_the_versions_that_are_tried():
    """However much faster another version is that matmul takes by its rule."""
    by_rule, first, second = LADDER["v7"], LADDER["v3"], replace(LADDER["v3"], blocks_per_sm=1)
    contest = tune.Contest(Problem(65, 66, 20), ["v3"], by_rule, None, None, None)
    contest.seconds = {by_rule: 1.0, second: 2.01, first: 2.0}
    assert contest.fastest(within=1.02) == [first, second]
    assert contest.finalists() == [by_rule, first, second]


def test_a_version_that_matmul_does_not_choose_from_is_timed(fake_gpu, capsys, monkeypatch):
    monkeypatch.setattr(tune, "TILES_OF_THREADS", ((32, 32),))
    monkeypatch.setattr(tune, "STAGES", (2,))
    status, printed = run(capsys, "--json", f"--problem={SMALL}", version="v9")
    assert status == 0
    timed = [row for row in rows_of(printed, "v9") if row["gflops"]]
    assert [32, 32] in [row["tile"][:2] for row in timed]


def test_without_a_disassembler_nothing_is_timed(few, fake_gpu, capsys, monkeypatch):
    def missing():
        raise sgemm.MissingError("there is no nvdisasm")

    monkeypatch.setattr(inspection, "_disassembler", missing)
    status, printed = run(capsys, f"--problem={SMALL}")
    assert status == 2
    assert "there is no nvdisasm" in printed.err
    assert printed.out == ""


def test_those_that_take_turns_are_warmed_up(few, fake_gpu, capsys, monkeypatch):
    warmed = []
    prepare = tune.Sampler.prepare

    def spied(sampler):
        warmed.append(not sampler.settled)
        prepare(sampler)

    monkeypatch.setattr(tune, "CLOSE", 1000)
    monkeypatch.setattr(tune.Sampler, "prepare", spied)
    _, printed = run(capsys, "--json", f"--problem={SMALL}")
    sampled = sum(bool(row["gflops"]) for row in rows_of(printed))
    assert warmed == [False] * sampled + [True] * tune.FINALISTS


def test_a_tile_that_is_slower_is_not_tried_with_other_buffers(few, fake_gpu, capsys, monkeypatch):
    monkeypatch.setattr(tune, "DEPTHS", (1, 0.5))
    monkeypatch.setattr(tune, "NEAR", 1)
    _, printed = run(capsys, "--json", f"--problem={SMALL}")
    v3 = [row for row in rows_of(printed, "v3") if row["predicted_gflops"]]
    depths = {m_n_of(row): set() for row in v3}
    for row in v3:
        if row["gflops"]:
            depths[m_n_of(row)].add(row["tile"][2])
    assert all(16 in timed for timed in depths.values())
    assert sum(8 in timed for timed in depths.values()) < len(depths)
    spared = [row for row in v3 if "slower, with other" in (row["pruned"] or "")]
    assert 8 in {row["tile"][2] for row in spared}


def m_n_of(row):
    return (*row["tile"][:2], *row["micro_tile"])


def test_where_no_time_is_left_two_are_timed(few, fake_gpu, capsys):
    _, printed = run(capsys, "--json", f"--problem={SMALL}", "--problem=33x34x35", "--seconds=1e-9")
    rows = rows_of(printed)
    assert Counter(row["problem"] for row in rows if row["gflops"]) == {SMALL: 2, "33x34x35": 2}
    assert sum(row["by_rule"] and bool(row["gflops"]) for row in rows) == 2
    assert any(row["pruned"] == "no time was left for it" for row in rows)


def test_each_problem_has_its_share_of_the_time(few, fake_gpu, capsys, monkeypatch):
    now, shares = [100.0], []

    def hold(contest, rows, until):
        shares.append(until - now[0])
        now[0] += 1  # it takes a second, and leaves the rest to the others

    monkeypatch.setattr(tune, "monotonic", lambda: now[0])
    monkeypatch.setattr(tune, "_hold", hold)
    run(capsys, "--json", *(f"--problem={n}x{n}x{n}" for n in (8, 9, 10)), "--seconds=30")
    assert shares == [10, 14.5, 28]


def test_the_results_of_those_that_are_out_leave_the_memory(few, fake_gpu, capsys, monkeypatch):
    most = []
    sample = tune.Contest.sample

    def counted(contest, version):
        sample(contest, version)
        most.append(len(contest._samplers))

    freed = []
    monkeypatch.setattr(tune.Contest, "sample", counted)
    pool = fake_gpu.cupy.get_default_memory_pool()
    pool.free_all_blocks = lambda: freed.append(True)
    monkeypatch.setattr(fake_gpu.cupy, "get_default_memory_pool", lambda: pool)
    run(capsys, "--json", f"--problem={SMALL}", "--problem=33x34x35")
    assert len(most) > max(most)
    assert max(most) <= tune.FINALISTS
    assert freed == [True, True]


@pytest.mark.parametrize("right_calls", [0, 1])
def test_a_wrong_result_is_not_chosen(few, fake_gpu, capsys, monkeypatch, tmp_path, right_calls):
    """Neither one that is wrong at once, nor one that goes wrong while it is timed."""
    right, calls = sgemm.matmul, Counter()

    def wrong(a, b, *, out, version):
        right(a, b, out=out, version=version)
        calls[version] += 1
        if version.tile[0] == 128 and calls[version] > right_calls:
            out += 1

    monkeypatch.setattr(sgemm, "matmul", wrong)
    monkeypatch.setattr(tune, "FAR", 1000)
    file = tmp_path / "choices.json"
    status, printed = run(capsys, "--json", f"--problem={SMALL}", f"--save={file}")
    assert status == 1
    timed = [row for row in rows_of(printed) if row["wrong"] or row["gflops"]]
    assert any(row["wrong"] for row in timed)
    for row in timed:
        assert bool(row["wrong"]) == (row["tile"][0] == 128) == (row["gflops"] is None)
    saved = json.loads(file.read_text())["choices"]
    assert saved
    assert all(chosen["tile"][0] == 64 for chosen in saved)


def test_what_is_saved_is_what_matmul_chooses(few, fake_gpu, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(tune, "WORTH", 0)  # whether or not it is faster here
    file = tmp_path / "fake.json"
    status, printed = run(capsys, "--json", f"--problem={SMALL}", f"--save={file}")
    assert status == 0
    best = rows_of(printed)[0]
    monkeypatch.setenv("SGEMM_CHOICES", str(tmp_path))
    chosen = choices.choose(tuple(LADDER), 65, 66, 20, "Fake GPU", 132)
    assert (chosen.name, list(chosen.tile)) == (best["version"], best["tile"])
    assert (list(chosen.micro_tile), chosen.threads) == (best["micro_tile"], best["threads"])
    saved = json.loads(file.read_text())["choices"]
    assert saved[0]["gflops"] == best["gflops"]
    versions = [choice["version"] for choice in saved]
    assert sorted(versions) == sorted({row["version"] for row in rows_of(printed)})
    without_it = tuple(name for name in LADDER if name != best["version"])
    chosen = choices.choose(without_it, 65, 66, 20, "Fake GPU", 132)
    assert (chosen.name, list(chosen.tile)) == (saved[1]["version"], saved[1]["tile"])


def test_a_run_that_is_cut_short_has_saved_what_it_found(few, fake_gpu, monkeypatch, tmp_path):
    hold, held = tune._hold, []

    def cut_short(*arguments):
        if held:
            raise KeyboardInterrupt
        held.append(True)
        hold(*arguments)

    monkeypatch.setattr(tune, "_hold", cut_short)
    file = tmp_path / "fake.json"
    arguments = "tune", "--version=v3", f"--problem={SMALL}", "--problem=99x99x99", f"--save={file}"
    assert command.main(arguments) == 130
    saved = json.loads(file.read_text())["choices"]
    assert {tuple(choice["shape"]) for choice in saved} == {(65, 66, 20)}


def row(gflops, by_rule=False, pruned=None, version="v7"):
    return {"gflops": gflops, "by_rule": by_rule, "pruned": pruned, "version": version}


SHORT = "slower in a short sample"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row(100, by_rule=True), row(102)], [1]),
        ([row(100, by_rule=True), row(100.9)], [0]),  # as much as noise
        ([row(100, by_rule=True), row(120, pruned=SHORT)], [0]),
        ([row(None, by_rule=True), row(90), row(90.1)], [2]),  # matmul's own is wrong
        # The fastest of other versions, though it be as fast, and was not timed to the end.
        ([row(100, by_rule=True), row(90, version="v8"), row(100.9, version="v8")], [0, 2]),
        (
            [row(9, version="v9"), row(100, by_rule=True), row(8, pruned=SHORT, version="v8")],
            [1, 0, 2],
        ),
    ],
)
def test_what_is_worth_saving(rows, expected):
    assert tune._choices(rows) == [rows[position] for position in expected]


def test_where_all_are_wrong_nothing_is_saved():
    assert tune._choices([row(None, by_rule=True), row(None)]) == []
