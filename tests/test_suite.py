"""The suite itself: a missing GPU is seen, a broken one stops it, examples can be counted, and the
cases that tests cover are reported."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cases import CASES

TESTS = Path(__file__).parent


def pytest_run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=TESTS.parent,
    )


@pytest.mark.case("5.7")
@pytest.mark.parametrize(("required", "outcome"), [("0", "2 skipped"), ("1", "2 errors")])
def test_gpu_tests_without_a_gpu(required, outcome):
    """Skipped, with the reason; red where SGEMM_REQUIRE_GPU=1 says that there should be one."""
    test = f"{TESTS / 'test_gpu.py'}::test_large_shapes"
    selected = ("-k", "v0 and (shape0 or shape1)", "-rs", test)
    run = pytest_run(*selected, CUDA_VISIBLE_DEVICES="", SGEMM_REQUIRE_GPU=required)
    assert run.returncode == int(required), run.stdout
    assert outcome in run.stdout
    assert "there is no usable GPU: " in run.stdout
    assert ("SGEMM_REQUIRE_GPU=1, but " in run.stdout) == (required == "1")


@pytest.mark.parametrize(("required", "outcome"), [("0", "1 skipped"), ("1", "1 error")])
def test_browser_tests_without_a_browser(required, outcome, tmp_path):
    """Skipped, with the reason; red where SGEMM_REQUIRE_BROWSER=1 says that there should be one."""
    test = f"{TESTS / 'test_browser.py'}::test_interleaved_run"
    run = pytest_run("-rs", test, PATH=str(tmp_path), SGEMM_REQUIRE_BROWSER=required)
    assert run.returncode == int(required), run.stdout
    assert outcome in run.stdout
    assert "there is no Chromium" in run.stdout or "Playwright is not installed" in run.stdout
    assert ("SGEMM_REQUIRE_BROWSER=1, but " in run.stdout) == (required == "1")


# As much of CuPy as the tests below use: a kernel breaks the GPU, which shows at the next wait.
FAKE_CUPY = """
class RawKernel:
    def __init__(self, code, name):
        pass

    def __call__(self, *arguments):
        cuda.runtime.broken = True

class cuda:
    class runtime:
        broken = False

        class CUDARuntimeError(RuntimeError):
            pass

        @classmethod
        def getDeviceCount(cls):
            return 1

        @classmethod
        def deviceSynchronize(cls):
            if cls.broken:
                raise cls.CUDARuntimeError("cudaErrorIllegalAddress")
"""

PLANTED = """
import cupy
import pytest

pytestmark = pytest.mark.gpu
WRITE_TO_ADDRESS_64 = 'extern "C" __global__ void f() { *reinterpret_cast<int*>(64) = 1; }'

def test_before():
    cupy.cuda.runtime.deviceSynchronize()

def test_planted():
    cupy.RawKernel(WRITE_TO_ADDRESS_64, "f")((1,), (1,), ())
    WAIT

@pytest.mark.parametrize("number", range(20))
def test_after(number):
    cupy.cuda.runtime.deviceSynchronize()
"""


@pytest.mark.case("1.49")
@pytest.mark.parametrize("gpu", ["fake", pytest.param("real", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("processes", "wait"),
    [("0", "cupy.cuda.runtime.deviceSynchronize()"), ("1", "pass")],
    ids=["in one process, waiting", "under xdist, not waiting"],
)
def test_an_illegal_access_is_one_failure(tmp_path, gpu, processes, wait):
    """Every later call on that GPU would fail as well: the run stops instead. The failure is that
    of the test that launched the kernel, also where nobody in it waits for the kernel."""
    (tmp_path / "test_planted.py").write_text(PLANTED.replace("WAIT", wait))
    if gpu == "fake":
        (tmp_path / "cupy.py").write_text(FAKE_CUPY)
    found_in = os.pathsep.join([str(tmp_path), str(TESTS)])
    run = pytest_run(
        *("-n", processes, "-p", "conftest", "-rf", str(tmp_path)), PYTHONPATH=found_in
    )
    assert run.returncode != 0
    assert "1 failed, 1 passed" in run.stdout, run.stdout
    assert re.search(r"FAILED .*::test_planted\b", run.stdout)
    assert "the GPU is unusable since " in run.stdout


@pytest.mark.case("1.51")
def test_the_first_example_may_compile(place, tmp_path):
    """With nothing compiled yet, a property is not too slow for Hypothesis, nor flaky."""
    cold = tmp_path / "cache"
    cold.mkdir(mode=0o700)
    environment = {"SGEMM_CACHE_DIR": str(cold), "SGEMM_EXAMPLES": "3"}
    test = f"{TESTS / 'test_matmul.py'}::test_every_call[{place.name}-v0]"
    run = pytest_run(test, **environment)
    assert "1 passed" in run.stdout, run.stdout
    assert list(cold.iterdir())


def test_every_case_has_a_test():
    """Named by its mark, or in the name of a parameter that gets the mark."""
    marks = re.compile(r"""(?:\bcase\(|"case )((?:[",\s]*\d+\.\d+)+)""")
    numbers = {
        number
        for path in TESTS.glob("test_*.py")
        for arguments in marks.findall(path.read_text(encoding="utf-8"))
        for number in re.findall(r"\d+\.\d+", arguments)
    }
    assert numbers == set(CASES)


def test_the_report_of_cases(tmp_path):
    (tmp_path / "test_some.py").write_text("""
import pytest

@pytest.mark.case("1.1", "1.2")
@pytest.mark.parametrize("number", [1, 2])
def test_right(number):
    pass

@pytest.mark.case("1.2")
def test_wrong():
    assert False

@pytest.mark.case("1.4")
def test_skipped():
    pytest.skip("needs two GPUs")
""")
    for processes in ("0", "1"):
        arguments = "--cases", "-p", "conftest", "-n", processes, "-k", "right or wrong or skipped"
        run = pytest_run(*arguments, str(tmp_path), PYTHONPATH=str(TESTS))
        report = run.stdout.partition(" cases ")[2]
        assert f"case 1.1: 2 passed: {CASES['1.1']}\n" in report, run.stdout + run.stderr
        assert re.search(r"case 1.2: 2 passed, 1 failed: .*\n.*test_right\n.*test_wrong\n", report)
        assert re.search(r"case 1.4: 1 skipped: .*\n.*test_skipped\n +needs two GPUs\n", report)
        assert "case 1.5: not run: " in report


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_module_that_cannot_be_imported_is_reported_beside_the_cases(tmp_path, processes):
    (tmp_path / "test_some.py").write_text("import nothing_of_that_name")
    run = pytest_run(
        "--cases", "-p", "conftest", "-n", processes, str(tmp_path), PYTHONPATH=str(TESTS)
    )
    assert "No module named 'nothing_of_that_name'" in run.stdout, run.stdout + run.stderr
    assert "case 1.1: not run: " in run.stdout
    assert "1 error in" in run.stdout


def test_what_needs_the_gpu_alone_comes_first(tmp_path):
    (tmp_path / "test_some.py").write_text("""
import pytest

def test_one():
    pass

@pytest.mark.alone
def test_two():
    pass

def test_three():
    pass
""")
    run = pytest_run("-v", "-p", "conftest", "-n", "0", str(tmp_path), PYTHONPATH=str(TESTS))
    assert re.findall(r"::test_(\w+) PASSED", run.stdout) == ["two", "one", "three"]


def test_a_case_that_is_none(tmp_path):
    number = "1.3"
    (tmp_path / "test_some.py").write_text(f"""
import pytest

@pytest.mark.case({number!r})
def test_right():
    pass
""")
    run = pytest_run("-p", "conftest", str(tmp_path), PYTHONPATH=str(TESTS))
    assert run.returncode not in (0, 1)
    assert "cases.py lists no case 1.3" in run.stdout + run.stderr


@pytest.mark.parametrize(
    ("environment", "examples"),
    [
        ({}, 25),
        ({"CI": "true"}, 40),
        ({"HYPOTHESIS_PROFILE": "nightly"}, 2000),
        ({"HYPOTHESIS_PROFILE": "nightly", "SGEMM_EXAMPLES": "7"}, 7),
    ],
)
def test_profiles(environment, examples):
    others = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CI", "HYPOTHESIS_PROFILE", "SGEMM_EXAMPLES")
    }
    script = "import conftest, hypothesis; print(hypothesis.settings().max_examples)"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**others, "PYTHONPATH": str(TESTS), **environment},
        capture_output=True,
        text=True,
        check=True,
        cwd=TESTS.parent,
    )
    assert int(run.stdout) == examples
