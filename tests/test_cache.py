"""Compiled kernels on disk: complete or absent, and shared by processes."""

import ctypes
import errno
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from places import GPU

import sgemm
from sgemm import ArgumentError, MissingError, cache, kernel_files

MULTIPLY = """
import numpy as np
import sgemm
a = np.random.default_rng(0).integers(-3, 4, (40, 40)).astype(np.float32)
assert (sgemm.matmul(a, a, version="v1") == a @ a).all()
"""
MULTIPLY_ON_THE_GPU = """
import cupy
import numpy as np
import sgemm
a = np.random.default_rng(0).integers(-3, 4, (40, 40)).astype(np.float32)
assert (sgemm.matmul(cupy.asarray(a), cupy.asarray(a), version="v1").get() == a @ a).all()
"""  # by NumPy, so that CuPy compiles nothing itself
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


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """A home of its own, and in it a folder for temporary files."""
    monkeypatch.delenv("SGEMM_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path


def python(script, **environment):
    """Start a Python process; a variable that is None is unset."""
    environment = {**os.environ, **environment}
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env={name: value for name, value in environment.items() if value is not None},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def succeeds(process):
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


def fails(process):
    """What the process says."""
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    return errors


@pytest.fixture
def multiply(place):
    """A script that multiplies in the place."""
    return MULTIPLY_ON_THE_GPU if place is GPU else MULTIPLY


def never(path):
    raise AssertionError("built again")


def test_a_file_is_built_once(folder):
    path = cache.fetch(".bin", ["a", b"b"], lambda path: path.write_bytes(b"built"))
    assert folder in path.parents
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


@pytest.mark.parametrize("damaged", [b"whol", b"", b"WHOLE", b"whole and more"])
def test_a_damaged_file_is_built_again(folder, damaged):
    def build(path):
        path.write_bytes(b"whole")

    cache.fetch(".bin", ["a"], build).write_bytes(damaged)
    assert cache.fetch(".bin", ["a"], build).read_bytes() == b"whole"
    assert cache.fetch(".bin", ["a"], never).read_bytes() == b"whole"


def test_damaged_kernels_are_compiled_again(folder):
    succeeds(python(MULTIPLY))
    (library,) = folder.rglob("*.so")
    os.truncate(library, 1000)
    succeeds(python(MULTIPLY))
    succeeds(python(WITHOUT_BUILDING + MULTIPLY))


def test_a_damaged_cubin_is_compiled_again(folder):
    pytest.importorskip("cuda.bindings.nvrtc")
    import sgemm

    cubin = sgemm.compile("v0").cubin
    (kept,) = folder.rglob("*.cubin")
    os.truncate(kept, kept.stat().st_size // 2)
    assert sgemm.compile("v0").cubin == cubin


def test_a_folder_that_is_deleted_meanwhile_is_made_again(folder):
    cache.fetch(".bin", ["a"], lambda path: path.write_bytes(b"1"))
    shutil.rmtree(folder)
    assert cache.fetch(".bin", ["a"], lambda path: path.write_bytes(b"2")).read_bytes() == b"2"


@pytest.mark.case("3.12")
def test_a_folder_that_cannot_be_written_is_an_error(monkeypatch):
    monkeypatch.setenv("SGEMM_CACHE_DIR", "/proc/sgemm")
    with pytest.raises(MissingError, match="SGEMM_CACHE_DIR: /proc/sgemm cannot be written"):
        cache.folder()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_named_folder_that_others_can_write_is_an_error(folder, mode):
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(
        MissingError, match=f"others can write to it: .*; repair: chmod go-w {folder}"
    ):
        cache.folder()
    folder.chmod(mode & ~0o022)
    assert cache.folder() == folder


def test_a_named_folder_of_another_user_is_an_error(folder, monkeypatch):
    folder.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(MissingError, match=f"{folder} belongs to another user"):
        cache.folder()


def test_where_the_folder_is(tmp_path, monkeypatch):
    monkeypatch.delenv("SGEMM_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "sgemm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == tmp_path / "home" / ".cache" / "sgemm"


def test_a_folder_that_others_can_write_is_not_used(at_home):
    """Code is loaded from it."""
    open_to_all = at_home / ".cache" / "sgemm"
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    assert cache.folder().parent == at_home / "temporary"


@pytest.mark.case("3.12")
@pytest.mark.parametrize("full", [errno.ENOSPC, errno.EDQUOT])
def test_a_folder_that_is_full_is_an_error(folder, full):
    def write(path):
        raise OSError(full, os.strerror(full))

    with pytest.raises(MissingError, match=f"^{folder} is full .*; repair: .*SGEMM_CACHE_DIR"):
        cache.fetch(".bin", ["a"], write)


@pytest.mark.case("3.12")
@pytest.mark.parametrize("full", [errno.ENOSPC, errno.EDQUOT])
def test_a_folder_that_the_compiler_fills_is_an_error(folder, tmp_path, monkeypatch, full):
    """It writes what it makes, and its temporary files, itself; in whatever language it says so."""
    script = tmp_path / "compiler"
    script.write_text(
        "#!/bin/sh\n"
        'test "$1" = --version -o "$1" = -fsyntax-only && exec g++ --version\n'
        f'test $LC_ALL = C && echo "$TMPDIR/x.s: {os.strerror(full)}" >&2\n'
        "exit 1\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    one = np.ones((1, 1), np.float32)
    with pytest.raises(MissingError, match=f"^{folder} is full .*; repair: .*SGEMM_CACHE_DIR"):
        sgemm.matmul(one, one)


def test_a_full_folder_goes_on_to_serve_what_it_has(folder, monkeypatch):
    """What looks for its faults beforehand says that it is full, though an empty file can be made
    there."""
    kept = cache.fetch(".bin", ["a"], lambda path: path.write_bytes(b"built"))
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **place: io.FileIO("/dev/full", "w"))
    with pytest.raises(MissingError, match=f"^{folder} is full .*; repair: .*SGEMM_CACHE_DIR"):
        cache.folder()
    assert cache.fetch(".bin", ["a"], never) == kept


def noexec(path):
    return SimpleNamespace(f_flag=os.ST_NOEXEC)


def test_a_folder_that_runs_no_code_keeps_no_libraries(folder, monkeypatch):
    """What a GPU loads is no code of this machine, and may lie there."""
    monkeypatch.setattr(os, "statvfs", noexec)
    expected = f"^SGEMM_CACHE_DIR: {folder} is mounted noexec.*; repair: .*name another folder"
    for use in (cache.folder, lambda: cache.fetch(cache.LIBRARY, ["a"], never)):
        with pytest.raises(MissingError, match=expected):
            use()
    kept = cache.fetch(".cubin", ["a"], lambda path: path.write_bytes(b"built"))
    assert folder in kept.parents


def test_a_home_that_runs_no_code_is_passed_over(at_home, monkeypatch):
    mounted = at_home / ".cache"
    monkeypatch.setattr(
        os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC * (mounted in path.parents))
    )
    assert cache.folder().parent == at_home / "temporary"


def test_a_library_that_is_not_loaded_is_told(folder, monkeypatch):
    refused = OSError("x.so: failed to map segment from shared object")
    monkeypatch.setattr(ctypes, "CDLL", Mock(side_effect=refused))
    one = np.ones((1, 1), np.float32)
    with pytest.raises(MissingError, match=r"not loaded \(x.so: failed to map.*SGEMM_CACHE_DIR"):
        sgemm.matmul(one, one)


def test_without_any_folder_that_can_be_written(at_home, monkeypatch):
    monkeypatch.setenv("HOME", "/proc/home")
    refused = FileNotFoundError(2, "No usable temporary directory found")
    monkeypatch.setattr(tempfile, "gettempdir", Mock(side_effect=refused))
    with pytest.raises(MissingError, match=r"^nothing can be kept in /proc/home/.cache, and no "):
        cache.folder()


def test_a_folder_named_from_one_that_is_gone(tmp_path):
    script = """
import os, sys
import sgemm
from sgemm import cache
os.chdir(sys.argv[1])
os.rmdir(sys.argv[1])
try:
    cache.folder()
except sgemm.MissingError as error:
    print(error)
"""
    gone = tmp_path / "gone"
    gone.mkdir()
    run = subprocess.run(
        [sys.executable, "-c", script, str(gone)],
        env={**os.environ, "SGEMM_CACHE_DIR": "cache", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert run.stdout.startswith("SGEMM_CACHE_DIR: cache cannot be written (No such file"), run


def test_the_repair_of_a_folder_can_be_pasted(tmp_path, monkeypatch):
    """Whatever its name holds."""
    folder = tmp_path / "of $mine; and"
    monkeypatch.setenv("SGEMM_CACHE_DIR", str(folder))
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(MissingError) as raised:
        cache.folder()
    repair = re.search("; repair: (.*), or name another folder$", str(raised.value))[1]
    subprocess.run(["sh", "-c", repair], check=True)
    assert cache.folder() == folder
    shutil.rmtree(folder)
    folder.write_text("")
    with pytest.raises(MissingError, match=r"is no folder.*; repair: remove the file"):
        cache.folder()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EFBIG, errno.EAGAIN])
def test_limits_of_the_system_are_told(folder, number):
    def build(path):
        raise OSError(number, os.strerror(number))

    expected = f"the system refuses .*{os.strerror(number)}.*; repair: ulimit -a"
    with pytest.raises(MissingError, match=expected):
        cache.fetch(".bin", ["a"], build)


BUILD_UNTIL_KILLED = """
from sgemm import cache
def build(path):
    path.write_bytes(b"half")
    print("building", file=sys.stderr, flush=True)
    time.sleep(60)
import sys, time
cache.fetch(".bin", ["a"], build)
"""


def test_what_a_killed_process_leaves_is_removed_once_it_is_old(folder):
    process = python(BUILD_UNTIL_KILLED)
    assert process.stderr.readline() == "building\n"
    process.send_signal(signal.SIGTERM)
    process.communicate()
    (left,) = folder.glob(f"{cache.BUILD}*")
    another = folder / "build-release"  # somebody's own
    another.mkdir()
    long_ago = time.time() - 2 * cache.ABANDONED_SECONDS
    os.utime(another, (long_ago, long_ago))

    cache.fetch(".bin", ["b"], lambda path: path.write_bytes(b"1"))
    assert left.exists()  # it might be in use
    os.utime(left, (long_ago, long_ago))
    cache.fetch(".bin", ["b"], never)
    cache.fetch(".bin", ["c"], lambda path: path.write_bytes(b"2"))
    assert not left.exists()
    assert another.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_a_child_that_was_forked_meanwhile_leaves_the_build_alone(folder):
    script = """
import os, threading
from sgemm import cache
begun, forked = threading.Event(), threading.Event()
def build(path):
    begun.set()
    forked.wait()
    path.write_bytes(b"built")
thread = threading.Thread(target=cache.fetch, args=(".bin", ["a"], build))
thread.start()
begun.wait()
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    forked.set()
    thread.join()
"""
    succeeds(python(script))
    assert cache.fetch(".bin", ["a"], never).read_bytes() == b"built"


@pytest.mark.case("3.12")
def test_a_folder_whose_name_is_no_text(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    succeeds(python(MULTIPLY, SGEMM_CACHE_DIR=folder))
    succeeds(python(WITHOUT_BUILDING + MULTIPLY, SGEMM_CACHE_DIR=folder))
    assert list(Path(folder).rglob("*.so"))
    told = subprocess.run(
        [sys.executable, "-m", "sgemm", "doctor"],
        env={**os.environ, "SGEMM_CACHE_DIR": folder, "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
    )
    assert b"Traceback" not in told.stderr, told.stderr.decode()
    assert b"cache folder" in told.stdout


@pytest.mark.case("3.13")
def test_processes_that_start_cold_together(place, multiply, tmp_path):
    for attempt in range(5 if place is GPU else 1):
        cold = tmp_path / str(attempt)
        processes = [python(multiply, SGEMM_CACHE_DIR=str(cold)) for _ in range(4)]
        for process in processes:
            succeeds(process)
        assert not list(cold.glob(f"{cache.BUILD}*"))
        succeeds(python(WITHOUT_BUILDING + multiply, SGEMM_CACHE_DIR=str(cold)))


@pytest.mark.case("3.14")
def test_another_process_compiles_nothing(multiply, folder):
    succeeds(python(multiply))
    succeeds(python(WITHOUT_BUILDING + multiply))
    assert "refuse" in fails(python(WITHOUT_BUILDING + multiply.replace("v1", "v2")))


@pytest.mark.case("3.13")
@pytest.mark.parametrize("attempt", range(5))
def test_a_race_for_one_file(tmp_path, attempt):
    """Four processes build it at the same moment; each gets a whole one, and one is left."""
    script = """
import sys, time
from sgemm import cache
def build(path):
    time.sleep(0.05)  # so that all have found it missing
    path.write_bytes(b"built" * 10_000)
sys.stdin.readline()
assert cache.fetch(".bin", ["a"], build).read_bytes() == b"built" * 10_000
"""
    processes = [python(script, SGEMM_CACHE_DIR=str(tmp_path)) for _ in range(4)]
    for process in processes:
        process.stdin.write("start\n")
        process.stdin.flush()
    for process in processes:
        succeeds(process)
    assert len(list(tmp_path.rglob("*.bin"))) == 1
    assert not list(tmp_path.glob(f"{cache.BUILD}*"))


@pytest.mark.case("3.12")
def test_read_only_home(multiply, tmp_path):
    """Nothing can be made under /proc, not even by root."""
    environment = {
        "HOME": "/proc",
        "TMPDIR": str(tmp_path),
        "SGEMM_CACHE_DIR": None,
        "XDG_CACHE_HOME": None,
        "CUPY_CACHE_DIR": str(tmp_path / "cupy"),  # without one CuPy itself is not imported
    }
    succeeds(python(multiply, **environment))
    succeeds(python(WITHOUT_BUILDING + multiply, **environment))


@pytest.mark.case("3.14")
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


def test_only_real_headers_are_read(tmp_path):
    """An editor's lock is a link to nowhere, and a folder may be called anything."""
    kernel = tmp_path / "mine.cu"
    kernel.write_text("\ufeff// ×", encoding="utf-8")
    (tmp_path / ".#mine.cuh").symlink_to("user@machine.1234")
    (tmp_path / "folder.cuh").mkdir()
    found = kernel_files.sources(str(kernel))
    assert found["mine.cu"] == "// ×"
    assert found.keys() == {
        "mine.cu",
        *(h.name for h in kernel_files.kernels_folder().glob("*.cuh")),
    }


def test_a_source_that_cannot_be_read_is_named(tmp_path):
    kernel = tmp_path / "mine.cu"
    with pytest.raises(ArgumentError, match=r"mine\.cu: cannot be read"):
        kernel_files.sources(str(kernel))
    kernel.write_text("")
    (tmp_path / "latin.cuh").write_bytes(b"// \xd7")
    with pytest.raises(ArgumentError, match=r"latin\.cuh: cannot be read"):
        kernel_files.sources(str(kernel))


def test_sources_are_utf_8_whatever_the_locale(tmp_path):
    kernel = tmp_path / "mine.cu"
    kernel.write_text(
        "// sgemm: TILE_M=1 TILE_N=1 THREADS=1\n// M × N\n"
        'extern "C" __global__ void sgemm(int M, int N, int K, float alpha, const float* A, '
        "long long lda, const float* B, long long ldb, float beta, float* C, long long ldc) "
        "{ C[0] = alpha; }\n",
        encoding="utf-8",
    )
    script = f"""
import locale, numpy as np, sgemm, sgemm.source
assert locale.getencoding() != "UTF-8"
one = np.ones((1, 1), np.float32)
assert sgemm.matmul(one, one, alpha=3, version=sgemm.source.from_file({str(kernel)!r}))[0, 0] == 3
"""
    succeeds(
        python(
            script,
            SGEMM_CACHE_DIR=str(tmp_path / "cache"),
            LC_ALL="POSIX",
            PYTHONUTF8="0",
            PYTHONCOERCECLOCALE="0",
        )
    )
