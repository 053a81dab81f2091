"""``python -m benchmarks tune``."""

import json
from collections import Counter

import pytest

import sgemm
from benchmarks import __main__ as command
from benchmarks import tune
from sgemm import LADDER, choices, sass

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


def run(capsys, *arguments):
    status = command.main(["tune", "--version=v3", *arguments])
    return status, capsys.readouterr()


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


# Without a GPU.


def test_without_a_gpu_the_ceilings_rank(few, capsys, monkeypatch):
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
    ceilings = [row["ceiling"] for row in survivors]
    assert ceilings == sorted(ceilings, reverse=True)
    assert large[: len(survivors)] == survivors
    assert {tuple(row["tile"][:2]) for row in survivors} >= {(64, 64), (128, 128)}
    assert all(row["gflops"] is None for row in document["rows"])


def test_a_ceiling_far_below_the_best_is_pruned(few, capsys, monkeypatch):
    monkeypatch.setattr(tune, "FAR", 1)
    _, printed = run(capsys, "--json", "--gpu=H200")
    rows = json.loads(printed.out)["rows"]
    best = max(row["ceiling"] or 0 for row in rows)
    for row in rows:
        if row["ceiling"]:
            assert (row["pruned"] is None) == (row["ceiling"] == best)
    assert any("far below" in (row["pruned"] or "") for row in rows)


def test_people_are_told_that_nothing_was_timed(few, fake_gpu, capsys):
    status, printed = run(capsys, "--gpu=rtx 4090")
    assert status == 0
    assert "NVIDIA GeForce RTX 4090" in printed.out
    assert "Nothing was timed" in printed.out
    assert "128×128×16" in printed.out


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


def test_a_gpu_that_has_to_be_there(capsys, monkeypatch):
    monkeypatch.setattr(tune.gpu, "find", lambda: None)
    monkeypatch.setenv("SGEMM_REQUIRE_GPU", "1")
    status, printed = run(capsys)
    assert status == 2
    assert "SGEMM_REQUIRE_GPU=1" in printed.err


# On a GPU.


def test_what_is_left_is_timed(few, fake_gpu, capsys):
    status, printed = run(capsys, "--json", f"--problem={SMALL}")
    document = json.loads(printed.out)
    assert status == 0
    assert document["environment"]["timed"] is True
    timed = [row for row in document["rows"] if not row["pruned"]]
    assert len(timed) > 1
    for row in document["rows"]:
        assert bool(row["seconds"]) == bool(row["gflops"]) == (row in timed)
    gflops = [row["gflops"] for row in timed]
    assert gflops == sorted(gflops, reverse=True)


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
    file = tmp_path / "choices.json"
    status, printed = run(capsys, "--json", f"--problem={SMALL}", f"--save={file}")
    rows = json.loads(printed.out)["rows"]
    assert status == 1
    for row in rows:
        if not row["pruned"]:
            assert bool(row["wrong"]) == (row["tile"][0] == 128) == (row["gflops"] is None)
    (chosen,) = json.loads(file.read_text())["choices"]
    assert chosen["tile"][0] == 64


def test_what_is_saved_is_what_matmul_chooses(few, fake_gpu, capsys, monkeypatch, tmp_path):
    file = tmp_path / "fake.json"
    status, printed = run(capsys, "--json", f"--problem={SMALL}", f"--save={file}")
    assert status == 0
    best = json.loads(printed.out)["rows"][0]
    monkeypatch.setenv("SGEMM_CHOICES", str(tmp_path))
    chosen = choices.choose(tuple(LADDER), 65, 66, 20, "Fake GPU", 132)
    assert (chosen.name, list(chosen.tile)) == ("v3", best["tile"])
    assert (list(chosen.micro_tile), chosen.threads) == (best["micro_tile"], best["threads"])
    (saved,) = json.loads(file.read_text())["choices"]
    assert saved["gflops"] == best["gflops"]
