"""The suite itself: a missing GPU is seen, a broken one stops it, and examples can be counted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def pytest_run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=TESTS.parent,
    )


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


@pytest.mark.gpu
def test_an_illegal_access_is_one_failure(tmp_path):
    """Every later call on that GPU would fail as well: the run stops instead."""
    (tmp_path / "test_planted.py").write_text("""
import cupy
import pytest

pytestmark = pytest.mark.gpu
WRITE_TO_ADDRESS_64 = 'extern "C" __global__ void f() { *reinterpret_cast<int*>(64) = 1; }'

def test_before():
    assert cupy.ones(3).sum() == 3

def test_planted():
    cupy.RawKernel(WRITE_TO_ADDRESS_64, "f")((1,), (1,), ())
    cupy.cuda.Device().synchronize()

def test_after():
    assert cupy.ones(3).sum() == 3
""")
    run = pytest_run("-p", "conftest", str(tmp_path), PYTHONPATH=str(TESTS))
    assert "1 failed, 1 passed" in run.stdout, run.stdout
    assert "the GPU is unusable since " in run.stdout


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
