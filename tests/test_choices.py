"""The versions and tiles that were measured to be the fastest, as ``matmul`` finds them."""

import json
import logging
from pathlib import Path
from timeit import repeat

import numpy as np
import pytest
from fake_cupy import fake
from problems import Problem
from problems import multiply as compute

import sgemm
from benchmarks import tune
from sgemm import LADDER, ArgumentError, choices, ladder, multiply, simulator
from sgemm.choices import SCHEMA, WITHIN, choose
from sgemm.gpu import Gpu
from sgemm.simulated import SimulatedGpu

__all__ = ["fake"]  # the fixture

NAMES = tuple(LADDER)
GPU = "Made-up GPU"
CHOICE = {
    "shape": [1000, 1000, 1000],
    "version": "v3",
    "tile": [64, 64, 8],
    "micro_tile": [8, 8],
    "blocks_per_sm": 4,
    "stages": 1,
    "slices": 1,
}

SHIPPED = {
    f"{v.name} {v.tile} {v.micro_tile} {v.stages} {v.slices}".replace(", ", "x"): v
    for v in (choice.version for choice in choices.load("", "NVIDIA H200"))
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of choices."""
    monkeypatch.setenv("SGEMM_CHOICES", str(tmp_path))
    kept = choices._choose, choices.load, multiply._decide
    for decided in kept:
        decided.cache_clear()
    yield tmp_path
    for decided in kept:
        decided.cache_clear()


def write(folder, *found, name="choices.json", **others):
    content = {"schema": SCHEMA, "gpu": GPU, "choices": list(found)} | others
    (folder / name).write_text(json.dumps(content))


def by_the_rule(m, n, k):
    return LADDER[ladder.fastest(NAMES, m, n, k, 132)]


def test_without_choices_the_rule_decides(monkeypatch):
    monkeypatch.delenv("SGEMM_CHOICES", raising=False)
    assert choose(NAMES, 1000, 1000, 1000, GPU, 132) == by_the_rule(1000, 1000, 1000)


def test_a_measured_shape_has_its_version_and_tiles(folder):
    write(folder, CHOICE)
    chosen = choose(NAMES, 1000, 1000, 1000, GPU, 132)
    assert chosen == LADDER["v3"].reshaped((64, 64, 8), (8, 8), 4, 1, 1)
    assert chosen.threads == 64


@pytest.mark.parametrize("position", range(3))
def test_what_is_near_a_measured_shape_is_chosen_as_there(folder, position):
    write(folder, CHOICE)
    for size, near in (
        (int(1000 * WITHIN), True),
        (int(1000 / WITHIN) + 1, True),
        (int(1000 * WITHIN) + 1, False),
        (int(1000 / WITHIN) - 1, False),
    ):
        shape = [1000, 1000, 1000]
        shape[position] = size
        chosen = choose(NAMES, *shape, GPU, 132)
        assert (chosen.tile == (64, 64, 8)) == near
        if not near:
            assert chosen == by_the_rule(*shape)


def test_the_nearest_of_all_files_decides(folder):
    write(folder, CHOICE, name="a.json")
    write(folder, CHOICE | {"shape": [1050, 1000, 1000], "tile": [64, 128, 8]}, name="b.json")
    assert choose(NAMES, 1020, 1000, 1000, GPU, 132).tile == (64, 64, 8)
    assert choose(NAMES, 1040, 1000, 1000, GPU, 132).tile == (64, 128, 8)


def test_all_shapes_of_the_sweep_have_their_own_choice(folder):
    """1023, 1024 and 1025 are near each other, and what fits one does not fit the next."""
    shapes = [(problem.m, problem.n, problem.k) for problem in tune.SWEPT]
    depths = {shape: 8 * (1 + number) for number, shape in enumerate(shapes)}
    write(
        folder,
        *(CHOICE | {"shape": shape, "tile": [64, 64, depth]} for shape, depth in depths.items()),
    )
    for shape in shapes:
        assert choose(NAMES, *shape, GPU, 132).tile[2] == depths[shape]
    for size, nearest in ((1020, 1023), (1030, 1025), (2040, 2047), (2100, 2049), (135, 129)):
        chosen = choose(NAMES, size, size, size, GPU, 132)
        assert chosen.tile[2] == depths[nearest, nearest, nearest]


def test_only_for_that_gpu_and_those_versions(folder):
    write(folder, CHOICE)
    shape = 1000, 1000, 1000
    assert choose(NAMES, *shape, "Another GPU", 132) == by_the_rule(*shape)
    others = tuple(name for name in NAMES if name != "v3")
    assert choose(others, *shape, GPU, 132).name != "v3"


def test_nothing_is_near_an_empty_product(folder):
    write(folder, CHOICE)
    assert choose(NAMES, 0, 1000, 1000, GPU, 132).tile != (64, 64, 8)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not JSON", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("{}", "'schema'"),
        ('{"schema": "benchmarks/tune/1"}', "its schema is 'benchmarks/tune/1'"),
        (json.dumps({"schema": SCHEMA, "gpu": GPU}), "'choices'"),
        (json.dumps({"schema": SCHEMA, "gpu": GPU, "choices": [{}]}), "KeyError"),
        ("[" * 100_000, "RecursionError"),
    ],
)
def test_a_file_that_is_none(folder, text, reason):
    (folder / "broken.json").write_text(text)
    with pytest.raises(ArgumentError, match=r"broken\.json: no choice of tiles .*--save") as caught:
        choose(NAMES, 1000, 1000, 1000, GPU, 132)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"version": "v99"}, "'v99'"),
        ({"tile": [0, 64, 8]}, "a size is not positive"),
        ({"tile": [64, 64]}, "not enough values"),
        ({"micro_tile": "many"}, "TypeError"),
        ({"shape": [1000, -1000, 1000]}, "a size is not positive"),
        ({"shape": [1000, float("inf"), 1000]}, "TypeError"),
        ({"shape": [1000, 10**400, 1000]}, "a shape of"),
        ({"tile": [64.5, 64, 8]}, "TypeError"),
        ({"tile": [7, 7, 7]}, "a tile of 7×7 is not made of 8×8"),
        ({"slices": 33}, "33 slices"),
        ({"tile": [512, 256, 8]}, "2048 threads, more than 1024"),
        ({"blocks_per_sm": 10**30}, "blocks per SM of 64 threads"),
        ({"stages": 10**30}, "stages of 64×64×8 fit no SM"),
        ({"tile": [64, 64, 1024]}, "1 stages of 64×64×1024 fit no SM"),
        ({"version": "v9", "tile": [32, 64, 592]}, "fit no SM"),
    ],
)
def test_a_choice_that_cannot_be(folder, wrong, reason):
    write(folder, CHOICE | wrong)
    with pytest.raises(ArgumentError, match=r"choices\.json: no choice of tiles") as caught:
        choose(NAMES, 1000, 1000, 1000, GPU, 132)
    assert reason in str(caught.value)


def test_the_ladders_own_tiles_can_be_chosen(folder, version):
    keys = ("tile", "micro_tile", "blocks_per_sm", "stages", "slices")
    own = {key: getattr(version, key) for key in keys}
    write(folder, CHOICE | own | {"version": version.name})
    assert choose(NAMES, 1000, 1000, 1000, GPU, 132) == version


def test_a_save_that_is_cut_short_leaves_what_was_there(folder, monkeypatch):
    write(folder, CHOICE)
    row = CHOICE | {"gflops": 1.0, "seconds": []}
    environment = {"gpu": GPU, "compute_capability": "9.0"}
    write_text = Path.write_text

    def cut_short(path, text, **options):
        write_text(path, text[:100], **options)  # as far as it came
        assert choices.load(str(folder), GPU)[0].version.tile == (64, 64, 8)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", cut_short)
    with pytest.raises(KeyboardInterrupt):
        choices.save(str(folder / "choices.json"), environment, [row | {"tile": [64, 128, 8]}])
    monkeypatch.undo()
    assert [path.name for path in folder.iterdir()] == ["choices.json"]
    assert [choice.version.tile for choice in choices.load(str(folder), GPU)] == [(64, 64, 8)]
    choices.load.cache_clear()
    choices.save(str(folder / "choices.json"), environment, [row | {"tile": [64, 128, 8]}])
    assert [choice.version.tile for choice in choices.load(str(folder), GPU)] == [(64, 128, 8)]


def test_a_folder_that_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("SGEMM_CHOICES", str(tmp_path / "nowhere"))
    with pytest.raises(ArgumentError, match=r"^SGEMM_CHOICES: .* is no folder; name the one"):
        choose(NAMES, 1000, 1000, 1000, GPU, 132)


def test_matmul_takes_the_choice(folder, monkeypatch, caplog):
    monkeypatch.setattr(SimulatedGpu, "gpu_name", GPU)
    write(folder, CHOICE | {"shape": [70, 70, 70]})
    a = np.random.default_rng(0).integers(-8, 8, (70, 70)).astype(np.float32)
    with caplog.at_level(logging.DEBUG, "sgemm"):
        assert (sgemm.matmul(a, a) == a @ a).all()
    assert "'TILE_M': 64, 'TILE_N': 64, 'TILE_K': 8" in caplog.text


def test_the_simulator_has_no_choices(folder):
    (folder / "broken.json").write_text("not JSON")
    one = np.ones((3, 3), np.float32)
    assert (sgemm.matmul(one, one) == 3).all()


@pytest.mark.case("1.4")
@pytest.mark.parametrize("chosen", SHIPPED.values(), ids=SHIPPED)
def test_what_is_shipped_is_right_around_its_tiles(place, chosen):
    tile_m, tile_n, tile_k = chosen.tile
    for m, n, k in ((tile_m + 1, tile_n - 1, 3 * tile_k + 1), (33, tile_n + 4, tile_k - 4)):
        with simulator.checked() as findings:
            assert compute(Problem(m, n, k), chosen, place).residual().ok
        assert findings == []


@pytest.mark.case("1.41")
@pytest.mark.parametrize("chosen", SHIPPED.values(), ids=SHIPPED)
def test_what_is_shipped_fits_an_sm(chosen):
    compiled = sgemm.compile(chosen, "sm_90")
    assert compiled.registers * chosen.threads * chosen.blocks_per_sm <= tune.REGISTERS
    assert compiled.spill_bytes == 0


def test_a_choice_costs_less_than_five_microseconds(folder):
    shapes = [[problem.m, problem.n, problem.k] for problem in tune.SWEPT]
    write(folder, *(CHOICE | {"shape": shape} for shape in shapes))
    arguments = NAMES, 1000, 1000, 1000, GPU, 132
    choose(*arguments)
    assert min(repeat(lambda: choose(*arguments), number=1000, repeat=5)) / 1000 < 5e-6


def test_a_product_that_is_transposed_has_the_tiles_of_the_transpose(fake, folder, caplog):
    """C.T = B.T @ A.T is computed for Fortran's layouts."""
    wide = CHOICE | {"shape": [32, 256, 64], "tile": [32, 128, 8]}
    tall = CHOICE | {"shape": [256, 32, 64], "tile": [128, 64, 8]}
    write(folder, wide, tall, gpu="Fake GPU")
    shapes = (32, 64), (64, 256), (32, 256)
    in_c = [fake.ones(shape, np.float32) for shape in shapes]
    in_fortran = [fake.ones(shape[::-1], np.float32).T for shape in shapes]
    for (a, b, out), tile in (
        (in_c, "'TILE_M': 32, 'TILE_N': 128"),
        (in_fortran, "'TILE_M': 128, 'TILE_N': 64"),
    ):
        caplog.clear()
        with caplog.at_level(logging.DEBUG, "sgemm"):
            sgemm.matmul(a, b, out=out)
        assert tile in caplog.text
        assert "is copied" not in caplog.text
        assert (out == 64).all()


def test_what_a_gpu_is_called(fake):
    assert Gpu(fake.cuda.Device(1)).hardware.gpu_name == "Fake GPU"
