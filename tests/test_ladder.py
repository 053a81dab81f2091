"""The ladder as data: entries that everything else can rely on."""

import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest

from sgemm import LADDER, ladder
from sgemm.kernel_files import kernel_path


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
    with pytest.raises(FrozenInstanceError):
        version.threads = 1


def test_blocks_cover_the_result(version):
    tile_m, tile_n, _ = version.tile
    assert version.blocks(1, 1) == version.blocks(tile_m, tile_n) == 1
    assert version.blocks(tile_m + 1, tile_n) == version.blocks(tile_m, tile_n + 1) == 2
    assert version.blocks(3 * tile_m, 5 * tile_n) == 15


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
