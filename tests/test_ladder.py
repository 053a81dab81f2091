"""The ladder as data: entries that everything else can rely on."""

import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgemm import LADDER, ladder
from sgemm.kernel_files import kernel_path
from sgemm.matrix import form_of
from sgemm.recipe import recipe_for


def test_names_and_order():
    assert list(LADDER) == [f"v{number}" for number in range(len(LADDER))]
    assert all(version.name == name for name, version in LADDER.items())


def test_entries(version):
    assert kernel_path(version.source).is_file()
    assert kernel_path(version.source).name.startswith(f"{version.name}_")
    assert version.title
    assert version.change
    assert version.b_layout in ("row", "column")
    assert 32 <= version.threads <= 1024
    assert version.min_compute_capability >= (7, 5)
    assert version.shared_bytes <= 48 * 1024
    assert version.multipliers <= version.threads or version.micro_tile == (1, 1)
    with pytest.raises(FrozenInstanceError):
        version.threads = 1


def test_tiles_cover_the_result(version):
    tile_m, tile_n, _ = version.tile
    assert version.tiles(1, 1) == version.tiles(tile_m, tile_n) == 1
    assert version.tiles(tile_m + 1, tile_n) == version.tiles(tile_m, tile_n + 1) == 2
    assert version.tiles(3 * tile_m, 5 * tile_n) == 15


STREAM_K = [version for version in LADDER.values() if version.stream_k]


@given(
    st.sampled_from(STREAM_K),
    *(st.integers(1, 20_000) for _ in range(3)),
    st.integers(1, 200),
)
def test_a_plan_is_one_that_the_kernels_can_carry_out(version, m, n, k, multiprocessors):
    """What stream_k.cuh counts on."""
    plan, tiles = version.plan(m, n, k, multiprocessors), version.tiles(m, n)
    steps = -(-k // version.tile[2])
    assert 1 <= plan.blocks <= multiprocessors * version.blocks_per_sm
    assert 0 <= plan.shared_tiles <= tiles
    if plan.shared_tiles:
        assert plan.blocks <= plan.shared_tiles * steps  # each block has a step at least
    # Unshared tiles are taken in whole turns, but for a last turn where nothing is shared.
    assert not plan.shared_tiles or (tiles - plan.shared_tiles) % plan.blocks == 0


def test_tiles_are_shared_where_that_ends_sooner():
    """On 132 SMs: 512 tiles are three turns and 116 tiles, of which each block gets 1.88."""
    v7 = LADDER["v7"]
    assert v7.tile[:2] == (128, 256)
    plan = v7.plan(4096, 4096, 4096, 132)
    assert (plan.blocks, plan.shared_tiles) == (132, 116 + 132)
    assert 512 / 132 * 4096 < plan.steps < 4 * 4096
    assert v7.plan(4096, 4096, 64, 132).shared_tiles == 0  # a fourth turn costs less
    split = v7.plan(1024, 1024, 1024, 132)
    assert (split.blocks, split.shared_tiles) == (128, 32)  # four blocks to each tile
    assert v7.plan(128 * 12, 256 * 11, 4096, 132).shared_tiles == 0  # one turn exactly


@pytest.mark.parametrize(
    ("parts", "steps"),
    [
        (2, 1 * (40 + 2 * 15)),
        (8, 1 * (40 + 8 * 15)),
        (9, (40 + 8 * 15) + (40 + 2 * 15)),
        (64, 2 * (40 + 8 * 15)),
        (65, 2 * (40 + 8 * 15) + (40 + 2 * 15)),
    ],
)
def test_what_it_costs_to_add_up_the_parts_of_a_tile(parts, steps):
    """As the kernels do it: eight at a time, and then eight of those."""
    v8 = LADDER["v8"]
    passes = 1000 * parts  # so many that all SMs share
    plan = v8.plan(1, 1, passes * v8.tile[2], parts)
    assert (plan.blocks, plan.shared_tiles) == (parts, 1)
    assert plan.steps == 1000 * v8.tile[2] + steps
    source = kernel_path("stream_k.cuh").read_text()
    assert f"FAN_IN = {ladder.FAN_IN};" in source


def test_what_blocks_leave_each_other_fits_older_kernels_too():
    """They counted for each shared tile, of which there can be more than blocks."""
    v8 = LADDER["v8"]
    square = form_of(256, 256, 256, 1, 0)
    recipe = recipe_for(v8, square, square, square, 6)
    assert recipe.plan.shared_tiles > recipe.plan.blocks
    assert recipe.arrivals == recipe.plan.shared_tiles * v8.multipliers


def test_without_stream_k_each_tile_has_a_block(version):
    if not version.stream_k:
        assert version.plan(1000, 1000, 8, 3).blocks == version.tiles(1000, 1000)


def test_every_kernel_file_is_in_the_ladder():
    on_disk = {path.name for path in kernel_path("").glob("v[0-9]*.cu")}
    assert on_disk == {version.source for version in LADDER.values()}


def test_loads_by_path_and_imports_nothing_of_the_package():
    script = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("checkout_ladder", {ladder.__file__!r})
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
assert list(module.LADDER) == {list(LADDER)}
assert not {{"sgemm", "numpy", "cupy"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-I", "-c", script], check=True)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4096, 4096, 4096), "v7"),
        ((3072, 3072, 3072), "v7"),
        ((1024, 1024, 1024), "v8"),
        ((64, 4096, 4096), "v8"),
        ((128, 128, 65536), "v8"),
        ((16384, 16384, 128), "v7"),
    ],
)
def test_the_fastest_version_on_132_sms(shape, expected):
    assert ladder.fastest(tuple(LADDER), *shape, 132) == expected


def test_the_fastest_version_is_one_that_can_run():
    everywhere = tuple(name for name, v in LADDER.items() if v.min_compute_capability <= (8, 0))
    assert ladder.fastest(everywhere, 4096, 4096, 4096, 108) == "v5"
    assert ladder.fastest(("v0",), 1, 1, 1, 1) == "v0"
