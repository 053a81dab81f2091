"""What CUDA's driver answers is said in words, wherever the package meets it."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import sgemm
from benchmarks import __main__ as benchmarks
from sgemm import causes, compiler, errors, gpu, multiply
from sgemm.places import Kernel


class CUDADriverError(RuntimeError):
    """As CuPy's: a status, and CUDA's own text."""

    def __init__(self, status):
        super().__init__(f"CUDA_ERROR_{status}: CUDA's own text")
        self.status = status


class CUDARuntimeError(CUDADriverError):
    pass


@pytest.mark.parametrize("error", [CUDADriverError, CUDARuntimeError])
@pytest.mark.parametrize("status", causes.CUDA_ERRORS)
def test_every_error_has_its_cause_and_repair(error, status):
    cause = causes.CUDA_ERRORS[status]
    assert cause.seen.startswith(f"CUDA error {status}, ")
    said = causes.cuda_error(error(status), "matmul")
    assert str(said) == f"matmul: {cause}"
    assert "\n" not in str(said)


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        pytest.param(35, sgemm.MissingError, "CuPy wheel", marks=pytest.mark.case("3.4")),
        (2, sgemm.OutOfMemoryError, "free_all_blocks"),
        (100, sgemm.MissingError, "sees no GPU"),
        pytest.param(209, sgemm.KernelError, "another compute", marks=pytest.mark.case("3.2")),
        (218, sgemm.KernelError, "update the driver"),
        pytest.param(
            222,
            sgemm.KernelError,
            "update the driver, or install an NVRTC no newer",
            marks=pytest.mark.case("3.5"),
        ),
        (700, sgemm.GpuUnusableError, "outside of its arrays"),
        (716, sgemm.GpuUnusableError, "16-byte boundary"),
        (719, sgemm.GpuUnusableError, "does nothing more for this process"),
        (900, sgemm.KernelError, "before the capture"),
        (12345, sgemm.KernelError, "CUDA's own text.*python -m sgemm doctor"),
    ],
)
def test_kinds_of_errors(monkeypatch, status, kind, says):
    """As ``matmul`` raises them, in place of CuPy's."""
    monkeypatch.setattr(multiply, "locate", raises(CUDARuntimeError(status)))
    one = np.ones((1, 1), np.float32)
    with pytest.raises(kind, match=says) as raised:
        sgemm.matmul(one, one)
    assert type(raised.value) is kind
    assert str(raised.value).startswith(f"matmul: CUDA error {status}, ")
    assert isinstance(raised.value.__cause__, CUDARuntimeError)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CUDADriverError(700), str(causes.CUDA_ERRORS[700])),
        (ModuleNotFoundError("No module named 'cupy'", name="cupy"), "no CuPy (No module named"),
        (ModuleNotFoundError("No module named 'x'", name="x"), "No module named 'x'"),
        (RuntimeError("somebody else's"), "somebody else's"),
    ],
)
def test_the_benchmarks_say_the_same(monkeypatch, capsys, error, text):
    monkeypatch.setattr("benchmarks.table.run", raises(error))
    assert benchmarks.main(["table"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"python -m benchmarks: {text}")
    assert said.count("\n") == 1


def test_other_errors_pass(monkeypatch):
    monkeypatch.setattr(multiply, "locate", raises(RuntimeError("somebody else's")))
    one = np.ones((1, 1), np.float32)
    with pytest.raises(RuntimeError, match=r"^somebody else's$"):
        sgemm.matmul(one, one)


def test_an_error_is_explained_once():
    with (
        pytest.raises(sgemm.OutOfMemoryError, match=r"^inner: no memory left \(MemoryError\)"),
        causes.errors_explained("outer"),
        causes.errors_explained("inner"),
    ):
        raise MemoryError


def raises(error):
    def function(*arguments):
        raise error

    return function


class Device:
    """A GPU that no NVRTC of before CUDA 12.8 compiles for."""

    id = 0
    compute_capability = "120"

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


@pytest.fixture
def device(monkeypatch):
    """One on which nothing is loaded yet, and which is forgotten afterwards."""
    monkeypatch.setattr(gpu, "_devices", {})
    return Device()


KERNEL = Kernel("v0_naive.cu", "sgemm", {"TILE_M": 8, "TILE_N": 32, "THREADS": 256}, 256)


@pytest.mark.case("3.2")
def test_a_gpu_that_nvrtc_does_not_compile_for(device, monkeypatch):
    monkeypatch.setattr(compiler, "_release", lambda: (12, 6))
    monkeypatch.setattr(compiler, "architectures", lambda: ["sm_75", "sm_90"])
    with pytest.raises(sgemm.MissingError) as raised:
        gpu.Gpu(device).launch_of(KERNEL, 1, ())
    assert str(raised.value).startswith(
        "GPU 0 (sm_120): compiling for it needs CUDA 12.8 or later, and NVRTC here is 12.6"
    )


@pytest.mark.case("3.5")
@pytest.mark.parametrize("status", [200, 209, 222])
def test_a_driver_that_does_not_load_the_kernel(device, monkeypatch, status):
    """Its CUDA and NVRTC's release are named, and what to change."""
    cupy = ModuleType("cupy")
    module = SimpleNamespace(load=raises(CUDADriverError(status)))
    cupy.cuda = SimpleNamespace(
        function=SimpleNamespace(Module=lambda: module),
        driver=SimpleNamespace(CUDADriverError=CUDADriverError),
        runtime=SimpleNamespace(driverGetVersion=lambda: 12040),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(gpu, "why_not", lambda arch, name: None)
    compiled = sgemm.Compiled(b"", 32, 0, 0, "", "13.5")
    monkeypatch.setattr(gpu, "compile_kernel", lambda *arguments: compiled)
    with pytest.raises(sgemm.KernelError) as raised:
        gpu.Gpu(device).launch_of(KERNEL, 1, ())
    message = str(raised.value)
    assert message.startswith(
        f"v0_naive.cu (NVRTC 13.5, driver for CUDA 12.4): CUDA error {status}, "
    )
    assert "update the driver, or install an NVRTC no newer than it" in message


CUPY_S_BANNER = """
raise ImportError('''
================================================================
Failed to import CuPy.

Original error:
  ImportError: libnvrtc.so.13: cannot open shared object file
================================================================
''') from ImportError("libnvrtc.so.13: cannot open shared object file")
"""


@pytest.mark.case("3.6", "3.7", "3.11")
def test_a_cupy_that_cannot_be_imported(tmp_path):
    """What is said is what is wrong, without the banner around it: by all alike."""
    (tmp_path / "cupy.py").write_text(CUPY_S_BANNER)
    script = """
import sgemm
from sgemm import causes
class OnGpu:
    __cuda_array_interface__ = {}
try:
    sgemm.matmul(OnGpu(), OnGpu())
except sgemm.MissingError as error:
    print(error)
try:
    import cupy
except ImportError as error:
    print(causes.explain(error))
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    one, other = run.stdout.splitlines()
    assert one == other
    assert one.startswith("CuPy cannot be imported (libnvrtc.so.13: cannot open")


@pytest.mark.case("3.12")
@pytest.mark.parametrize(
    ("named", "failed", "is_the_folder"),
    [
        (None, ".cupy", True),
        (None, ".cupy/kernel_cache", True),
        (None, "venv/cupy/.data/_wheel.json", False),
        ("elsewhere", "elsewhere", True),
        ("elsewhere", ".cupy", False),
        ("", "", True),
    ],
)
def test_a_cache_folder_that_cupy_cannot_make(monkeypatch, named, failed, is_the_folder):
    """CuPy makes it when it is imported; other files that it misses are another cause."""
    monkeypatch.setenv("HOME", "/proc")
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    if named is not None:
        monkeypatch.setenv("CUPY_CACHE_DIR", named and f"/proc/{named}")
    error = FileNotFoundError(2, "No such file or directory", failed and f"/proc/{failed}")
    said = str(causes.of_cupy_import(error))
    assert ("CuPy cannot make its cache folder" in said) == is_the_folder
    assert ("export CUPY_CACHE_DIR=" in said) == is_the_folder
    assert str(error) in said


@pytest.mark.case("3.7")
def test_without_cuda_every_test_is_collected(tmp_path):
    """Those that need it are skipped when they run, or with their whole file."""
    (tmp_path / "without_cuda.py").write_text(
        "import sys\nfor name in ('cuda', 'cuda.bindings', 'cupy'):\n    sys.modules[name] = None\n"
    )
    options = ["-p", "without_cuda", "-p", "no:cacheprovider", "--collect-only", "--quiet"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-2000:]


@pytest.mark.gpu
def test_a_kernel_that_writes_where_nothing_is():
    """In a process of its own, whose GPU does nothing more afterwards."""
    source = str(Path(__file__).parent / "planted_kernels" / "writes_nowhere.cu")
    command = [sys.executable, "-m", "sgemm", "check", "--json", "--shape", "8x8x8"]
    run = subprocess.run([*command, "--source", source], capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    assert "CUDA error 700, illegal address: " in run.stdout


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "ValueError"),
        ("first\nsecond", "first"),
        ("a.cu does not compile:", "a.cu does not compile:"),
        (
            "a.cu does not compile:\n  a.cu(3): error: no\nmore",
            "a.cu does not compile: a.cu(3): error: no",
        ),
        ("a.cu does not compile:\nIn file b:\n  error: no", "a.cu does not compile: error: no"),
    ],
)
def test_an_error_in_one_line(text, line):
    assert errors.in_one_line(ValueError(text)) == line


class CompileException(Exception):  # noqa: N818 - its name in CuPy
    """As CuPy's: a log of many lines."""


class NVRTCError(RuntimeError):
    """As CuPy's."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            CompileException(
                "a.cu(1): note\na.cu(2): error: cannot open source file 'vector_types.h'"
            ),
            "cannot open source file 'vector_types.h'",
        ),
        (NVRTCError("NVRTC_ERROR_COMPILATION (6)"), "NVRTC_ERROR_COMPILATION (6)"),
        (RuntimeError("CuPy failed to load libnvrtc.so.13: OSError"), "failed to load libnvrtc"),
    ],
)
def test_what_cupy_cannot_compile_is_explained(error, said):
    """It compiles kernels of its own, such as for a random matrix."""
    with pytest.raises(sgemm.MissingError) as raised, causes.errors_explained("check"):
        raise error
    message = str(raised.value)
    assert message.startswith("check: CuPy cannot compile its own kernels (")
    assert said in message
    assert "\n" not in message


def test_what_the_system_refuses_is_explained(monkeypatch):
    refused = BlockingIOError(11, "Resource temporarily unavailable")
    monkeypatch.setattr(multiply, "locate", raises(refused))
    one = np.ones((1, 1), np.float32)
    expected = "^matmul: the system refuses .*temporarily unavailable.*; repair: ulimit -a"
    with pytest.raises(sgemm.MissingError, match=expected):
        sgemm.matmul(one, one)


def test_a_fact_is_on_one_line():
    cause = causes.CPP_COMPILER_WRONG.of(command="g++\n-x")
    assert cause.seen == "CXX=g++ -x is no C++ compiler that runs here"


@pytest.mark.parametrize(
    ("release", "expected"), [("12.9", causes.GPU_BELOW_LADDER), ("13.0", causes.GPU_TOO_OLD)]
)
def test_the_last_release_for_an_old_gpu_compiles_for_it(release, expected):
    cause = causes.of_architecture("sm_70", release, ["sm_70", "sm_90"], (8, 0))
    assert cause.why.partition(" ")[0] == expected.why.partition(" ")[0]
