"""Every version under compute-sanitizer, which sees what a right result hides."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TARGET = TESTS / "sanitizer_target.py"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not on the PATH"
    ),
]


def sanitize(tool: str, *arguments: str) -> subprocess.CompletedProcess:
    sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
    return subprocess.run(
        [*sanitizer, sys.executable, str(TARGET), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.case("1.4", "1.9", "1.11", "1.12", "1.50")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_every_version_is_clean(tool):
    run = sanitize(tool)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "========= ERROR SUMMARY: 0 errors" in run.stdout or (
        tool == "racecheck" and "0 hazards displayed" in run.stdout
    )


@pytest.mark.parametrize(
    ("kernel", "report"),
    [
        pytest.param(
            "writes_past_the_row", "Invalid __global__ write", marks=pytest.mark.case("1.50")
        ),
        pytest.param(
            "misaligned_shared_tile", "Invalid __shared__ read", marks=pytest.mark.case("1.4")
        ),
    ],
)
def test_memcheck_sees_a_planted_mistake(kernel, report):
    """Without this, a memory pool could hide every overrun from the checks above."""
    run = sanitize("memcheck", str(TESTS / "planted_kernels" / f"{kernel}.cu"))
    assert run.returncode == 9, run.stdout + run.stderr
    assert report in run.stdout
