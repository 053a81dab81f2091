"""Every version, and kernels with planted faults, under compute-sanitizer, which sees what a right
result hides. Of the faults that the simulator finds, it must see those that it can."""

import re
import shutil
import stat
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from kernel_faults import FAULTS
from sanitizer_target import compile_planted, function_name

import sgemm

TESTS = Path(__file__).parent
TARGET = TESTS / "sanitizer_target.py"

OPTIONS = {
    # Libraries ask the driver for what it may not have.
    "memcheck": ["--report-api-errors=no", "--destroy-on-device-error=kernel"],
    "racecheck": [],
    "initcheck": ["--destroy-on-device-error=kernel"],
    "synccheck": ["--destroy-on-device-error=kernel"],
}

READ, WRITE = "Invalid __global__ read of size 4 bytes", "Invalid __global__ write of size 4 bytes"
RACE = "Race reported between"
SEEN = {
    "reads a row of A too far": ("memcheck", READ),
    "reads A without asking for its end": ("memcheck", READ),
    "writes beside C": ("memcheck", WRITE),
    "writes at a wild address": ("memcheck", WRITE),
    "misaligned float4": ("memcheck", "Invalid __shared__ read of size 16 bytes"),
    "reads C where beta is 0": (
        "initcheck",
        "Uninitialized __global__ memory read of size 4 bytes",
    ),
    "no barrier after the copies": ("racecheck", RACE),
    "overwrites the buffer in use": ("racecheck", RACE),
    "overwrites what others still read": ("racecheck", RACE),
    "no wait for the copies": ("racecheck", RACE),
    "a wait that is too weak": ("racecheck", RACE),
    "no commit": ("racecheck", RACE),
    "wait at different barriers": ("synccheck", "Barrier error detected. Divergent thread(s)"),
}
"""Fault to the tool that sees it and what it reports."""

UNTOLD = {
    "copies past a shared array": ("memcheck", "Invalid __shared__ write"),
    "misaligned asynchronous copy": ("memcheck", "misaligned"),
    "a barrier too early": ("racecheck", RACE),
    "a warp that is not waited for": ("racecheck", RACE),
    "arrives before it has read": ("racecheck", RACE),
    "arrives before the copies have": ("racecheck", RACE),
}
"""The same for faults of which its manual does not say whether it sees them: what an asynchronous
copy writes beside an array, and races around mbarriers."""

UNSEEN = {
    "it knows blocks of memory, not the arrays and tiles in them": (
        "reads past a shared array",
        "reads before a shared array",
        "writes into the next tile",
    ),
    "it does not know what a kernel may write, and what it must": (
        "writes to A",
        "writes an element twice",
        "leaves elements out",
    ),
    "it looks for races in shared memory alone": ("two threads write an element",),
    "it looks at shared memory that nobody wrote from CUDA 13.1 on": (
        "reads shared memory that nobody wrote",
    ),
    "the kernel would never end": (
        "not all reach the barrier",
        "a named barrier for too many",
        "a missing arrival",
    ),
    "the kernel may never end: who is two rounds ahead ends the phase that others still await": (
        "does not wait for an empty buffer",
        "does not wait for a full buffer",
    ),
    "the ladder has no bulk copies, so portable.cuh has them in the simulator only": (
        "misaligned bulk copy",
        "uses mbarriers before they are there",
        "expects fewer bytes than come",
        "one arrival too many",
    ),
    "the kernel stops itself, which any run tells": ("an assertion", "a trap"),
    "a GPU's stack grows as it must": ("too large a frame",),
}
"""Why it does not see a fault, or is not asked to, to the faults."""


def on_gpu(test):
    missing = shutil.which("compute-sanitizer") is None
    needs = pytest.mark.skipif(missing, reason="compute-sanitizer is not on the PATH")
    return pytest.mark.gpu(needs(test))


def sanitize(tool, *arguments):
    return subprocess.run(
        [
            *("compute-sanitizer", f"--tool={tool}", "--error-exitcode=9"),
            *("--print-limit=0", "--show-backtrace=no"),
            *OPTIONS[tool],
            *(sys.executable, str(TARGET), *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def errors(output):
    """How many errors the summary tells; None without a summary, as of a tool that has failed."""
    summary = re.search(r"^={9} ERROR SUMMARY: (\d+) errors?", output, re.M) or re.search(
        r"^={9} RACECHECK SUMMARY: (\d+) hazards? displayed", output, re.M
    )
    return int(summary[1]) if summary else None


def reports(output):
    """The reports by the function that they name; a report's first line is not indented."""
    found, report = defaultdict(list), ""
    for line in output.splitlines():
        if not line.startswith("========= "):
            continue
        text = line.removeprefix("========= ")
        if not text.startswith(" "):
            report = text
        if report and (name := re.search(r"\b(kernel_that_\w+)", text)):
            found[name[1]].append(f"{report}\n{text}")
            report = ""
    return found


@cache
def planted_reports(tool):
    """What the tool says of all faults that it is asked about, which run in one process."""
    names = [name for name, (sees, _) in (SEEN | UNTOLD).items() if sees == tool]
    run = sanitize(tool, "--planted", *names)
    assert errors(run.stdout), run.stdout + run.stderr
    return reports(run.stdout)


@on_gpu
@pytest.mark.case("1.4", "1.9", "1.11", "1.12", "1.50")
@pytest.mark.parametrize("tool", OPTIONS)
def test_every_version_is_clean(tool):
    run = sanitize(tool)
    assert run.returncode == 0, run.stdout + run.stderr
    assert errors(run.stdout) == 0


@on_gpu
@pytest.mark.case("1.50")
def test_memcheck_sees_a_planted_mistake():
    """Of a kernel that matmul launches: a memory pool could hide every overrun from the checks
    above."""
    run = sanitize("memcheck", str(TESTS / "planted_kernels" / "writes_past_the_row.cu"))
    assert run.returncode != 0, run.stdout + run.stderr
    assert "Invalid __global__ write" in run.stdout


@on_gpu
@pytest.mark.case("1.4", "1.11", "1.12")
@pytest.mark.parametrize("name", SEEN)
def test_a_fault_that_it_can_see_is_reported(name):
    tool, expected = SEEN[name]
    found = planted_reports(tool)[function_name(name)]
    assert any(expected in report for report in found), found


@on_gpu
@pytest.mark.xfail(reason="its manual does not say whether it sees this", strict=False)
@pytest.mark.parametrize("name", UNTOLD)
def test_a_fault_that_it_may_see_is_reported(name):
    tool, expected = UNTOLD[name]
    found = planted_reports(tool)[function_name(name)]
    assert any(expected in report for report in found), found


def test_every_fault_that_the_simulator_finds_is_accounted_for():
    unseen = [name for names in UNSEEN.values() for name in names]
    assert sorted([*SEEN, *UNTOLD, *unseen]) == sorted(FAULTS)


@pytest.mark.parametrize("name", SEEN | UNTOLD)
def test_a_planted_kernel_compiles_for_a_gpu(name):
    try:
        _, compiled = compile_planted(name, "sm_90")
    except sgemm.MissingError as error:
        pytest.skip(str(error))
    assert function_name(name).encode() in compiled.cubin


CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
NO_RACE = (
    "========= COMPUTE-SANITIZER\n"
    "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
)
INVALID = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at kernel_that_writes_beside_C+0x7b0
=========     by thread (24,0,0) in block (8,0,0)
=========     Access at 0x7f2b37a01700 is out of bounds
=========     and is 129 bytes after the nearest allocation at 0x7f2b37a00000 of size 5,760 bytes
=========
========= Invalid __shared__ read of size 16 bytes
=========     at kernel_that_misaligned_float4(int, int, int, float)+0x9e0 in planted.cu:40
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x204 is misaligned
=========
========= ERROR SUMMARY: 2 errors
"""
RACES = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at kernel_that_no_commit+0x410
=========     and Read access at kernel_that_no_commit+0x5f0 [3072 hazards]
=========     and Read access at kernel_that_no_commit+0x600 [3072 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
DIVERGENT = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at kernel_that_wait_at_different_barriers+0x2c8
=========     by thread (32,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""


@pytest.mark.parametrize(
    ("output", "count"),
    [(CLEAN, 0), (NO_RACE, 0), (INVALID, 2), (RACES, 1), (DIVERGENT, 1), ("killed\n", None)],
)
def test_the_summary_is_read(output, count):
    assert errors(output) == count


def test_reports_are_told_apart_by_their_kernels():
    found = reports(INVALID)
    assert set(found) == {"kernel_that_writes_beside_C", "kernel_that_misaligned_float4"}
    (write,) = found["kernel_that_writes_beside_C"]
    assert write.startswith(WRITE)
    (read,) = found["kernel_that_misaligned_float4"]
    assert read.startswith("Invalid __shared__ read of size 16 bytes")
    assert list(reports(RACES)) == ["kernel_that_no_commit"]
    assert RACE in reports(RACES)["kernel_that_no_commit"][0]
    assert list(reports(DIVERGENT)) == ["kernel_that_wait_at_different_barriers"]
    assert reports(CLEAN) == {}


@pytest.mark.parametrize(("output", "status"), [(RACES, 9), (CLEAN, 0)])
def test_the_tool_is_run_on_all_its_faults_at_once(tmp_path, monkeypatch, output, status):
    fake = tmp_path / "compute-sanitizer"
    fake.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"open({str(tmp_path / 'arguments')!r}, 'w').write('\\n'.join(sys.argv[1:]))\n"
        f"print({output!r})\nsys.exit({status})\n"
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    ask = planted_reports.__wrapped__
    if status == 0:
        with pytest.raises(AssertionError):
            ask("racecheck")
    else:
        assert "kernel_that_no_commit" in ask("racecheck")
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[:2] == ["--tool=racecheck", "--error-exitcode=9"]
    target = arguments.index(str(TARGET))
    assert arguments[target + 1] == "--planted"
    planted = arguments[target + 2 :]
    assert {"no commit", "a barrier too early"} <= set(planted)
    assert "writes beside C" not in planted
