"""Compiled kernels on disk: complete or absent, and shared by processes."""

import os
import subprocess
import sys

import pytest

from sgemm import MissingError, cache

MULTIPLY = """
import numpy as np
import sgemm
a = np.random.default_rng(0).integers(-3, 4, (40, 40)).astype(np.float32)
assert (sgemm.matmul(a, a, version="v1") == a @ a).all()
"""
WITHOUT_BUILDING = """
from sgemm import cache
fetch = cache.fetch
def refuse(path):
    raise AssertionError(f"{path} is compiled although it should be in the cache")
cache.fetch = lambda suffix, key_parts, build: fetch(suffix, key_parts, refuse)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SGEMM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def python(script, **environment):
    """Start a Python process; a variable that is None is unset."""
    environment = {**os.environ, **environment}
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env={name: value for name, value in environment.items() if value is not None},
        stderr=subprocess.PIPE,
        text=True,
    )


def succeeds(process):
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


def never(path):
    raise AssertionError("built again")


def test_a_file_is_built_once(folder):
    path = cache.fetch(".bin", ["a", b"b"], lambda path: path.write_bytes(b"built"))
    assert path.parent == folder
    assert path.suffix == ".bin"
    assert cache.fetch(".bin", ["a", b"b"], never) == path
    assert path.read_bytes() == b"built"


@pytest.mark.parametrize("other", [["a", "c"], ["ab"], ["a", "b", ""], ["", "a", "b"], ["b", "a"]])
def test_other_keys_are_other_files(folder, other):
    first = cache.fetch(".bin", ["a", "b"], lambda path: path.write_bytes(b"1"))
    second = cache.fetch(".bin", other, lambda path: path.write_bytes(b"2"))
    assert first.read_bytes() == b"1"
    assert second.read_bytes() == b"2"


def test_a_failed_build_leaves_nothing(folder):
    def fail(path):
        path.write_bytes(b"half")
        raise ValueError("stopped")

    with pytest.raises(ValueError, match="stopped"):
        cache.fetch(".bin", ["a"], fail)
    assert list(folder.iterdir()) == []
    assert (
        cache.fetch(".bin", ["a"], lambda path: path.write_bytes(b"whole")).read_bytes() == b"whole"
    )


def test_a_folder_that_cannot_be_written_is_an_error(monkeypatch):
    monkeypatch.setenv("SGEMM_CACHE_DIR", "/proc/sgemm")
    with pytest.raises(MissingError, match="SGEMM_CACHE_DIR"):
        cache.folder()


def test_where_the_folder_is(tmp_path, monkeypatch):
    monkeypatch.delenv("SGEMM_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "sgemm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == tmp_path / "home" / ".cache" / "sgemm"


def test_a_folder_that_others_can_write_is_not_used(tmp_path, monkeypatch):
    """Code is loaded from it."""
    monkeypatch.delenv("SGEMM_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    open_to_all = tmp_path / ".cache" / "sgemm"
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    assert cache.folder().parent == tmp_path / "temporary"


def test_processes_that_start_cold_together(tmp_path):
    cold = {"SGEMM_CACHE_DIR": str(tmp_path)}
    processes = [python(MULTIPLY, **cold) for _ in range(3)]
    for process in processes:
        succeeds(process)
    assert not list(tmp_path.glob("build-*"))
    succeeds(python(WITHOUT_BUILDING + MULTIPLY, **cold))


def test_read_only_home(tmp_path):
    """Nothing can be made under /proc, not even by root."""
    environment = {
        "HOME": "/proc",
        "TMPDIR": str(tmp_path),
        "SGEMM_CACHE_DIR": None,
        "XDG_CACHE_HOME": None,
    }
    succeeds(python(MULTIPLY, **environment))
    succeeds(python(WITHOUT_BUILDING + MULTIPLY, **environment))


def test_nvrtc_is_not_asked_twice(folder):
    pytest.importorskip("cuda.bindings.nvrtc")
    script = 'import sgemm; print(sgemm.compile("v0").registers)'
    succeeds(python(script))
    succeeds(python(WITHOUT_BUILDING + script))


def test_an_edited_header_is_another_kernel(folder, tmp_path):
    """An edit takes effect at once: the key holds all text that may be included."""
    from sgemm.source import from_file

    pytest.importorskip("cuda.bindings.nvrtc")
    import sgemm

    kernel = tmp_path / "mine.cu"
    kernel.write_text(
        '// sgemm: TILE_M=1 TILE_N=1 THREADS=32\n#include "amount.cuh"\n'
        'extern "C" __global__ void sgemm(float* C) { C[threadIdx.x] = AMOUNT; }\n'
    )
    cubins = set()
    for amount in ("1.25f", "2.25f"):
        (tmp_path / "amount.cuh").write_text(f"#define AMOUNT {amount}\n")
        cubins.add(sgemm.compile(from_file(kernel)).cubin)
    assert len(cubins) == 2
