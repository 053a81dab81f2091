"""Every version, and kernels with planted faults, under compute-sanitizer, which sees what a right
result hides. Of the faults that the simulator finds, it must see those that it can.

What it sees was measured on an H200, with compute-sanitizer of CUDA 13.0.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import problems
import pytest
from kernel_faults import FAULTS, KERNELS, planted
from matrices import PLAIN
from places import SIMULATOR
from problems import Problem
from sanitizer_target import (
    SHAPES,
    compile_planted,
    every_thread_arrives,
    function_name,
    where_every_thread_arrives,
)

import sgemm
from sgemm import LADDER, ladder, simulator
from sgemm.kernel_files import kernel_path, read
from sgemm.source import from_file

TESTS = Path(__file__).parent
TARGET = TESTS / "sanitizer_target.py"

AT_A_TIME = 7
SECONDS, SECONDS_FOR_A_FAULT = 300, 60

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
    "copies past a shared array": ("memcheck", "Invalid __shared__ write of size 16 bytes"),
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
    "a barrier too early": ("racecheck", RACE),
    "arrives before it has read": ("racecheck", RACE),
    "arrives before the copies have": ("racecheck", RACE),
    "wait at different barriers": ("synccheck", "Barrier error detected. Divergent thread(s)"),
}
"""Fault to the tool that sees it and what it reports."""

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
    "it says nothing of an asynchronous copy off its boundary": ("misaligned asynchronous copy",),
    "it looks for races in shared memory alone": ("two threads write an element",),
    "it looks at shared memory that nobody wrote from CUDA 13.1 on": (
        "reads shared memory that nobody wrote",
    ),
    "it reports right kernels too: to it __syncwarp orders nothing before a lane's arrival": (
        "a warp that is not waited for",
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


FOR_THEIR_WARPS = [
    name
    for name, version in LADDER.items()
    if "mbarrier_arrive(" in read(kernel_path(version.source))
]
"""The versions of which one lane arrives at an mbarrier for its warp."""


def check(version, m, n, k, seed=0):
    """What the simulator's checks find in a product, and the product."""
    problem = Problem(m, n, k, out=PLAIN, data="small integers", seed=seed, sharing="never")
    product = None
    with simulator.checked() as found, suppress(sgemm.KernelError):
        product = problems.multiply(problem, version, SIMULATOR)
    return found, product


def on_gpu(test):
    missing = shutil.which("compute-sanitizer") is None
    needs = pytest.mark.skipif(missing, reason="compute-sanitizer is not on the PATH")
    return pytest.mark.gpu(needs(test))


def sanitize(tool, *arguments, seconds=SECONDS):
    """The run of the tool; one that takes longer is ended, with all that it has started, and its
    exit status is 124."""
    return subprocess.run(
        [
            *("timeout", "--kill-after=5", str(seconds)),
            *("compute-sanitizer", f"--tool={tool}", "--error-exitcode=9"),
            *("--print-limit=0", "--show-backtrace=no"),
            *OPTIONS[tool],
            *(sys.executable, str(TARGET), *arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
    )


def what_happened(run):
    return f"exit status {run.returncode}\n{run.stdout}{run.stderr}"


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


def run_planted(name):
    """A process of its own: a kernel that never ends takes no other with it."""
    return sanitize(SEEN[name][0], "--planted", name, seconds=SECONDS_FOR_A_FAULT)


@cache
def planted_runs():
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return dict(zip(SEEN, pool.map(run_planted, SEEN), strict=True))


def planted_run(name):
    if "PYTEST_XDIST_WORKER" in os.environ:  # which is one of many that run a few each
        return run_planted(name)
    return planted_runs()[name]


def assert_clean(run):
    assert run.returncode == 0, what_happened(run)
    assert errors(run.stdout) == 0, what_happened(run)


@pytest.mark.parametrize("name", [name for name, version in LADDER.items() if version.stream_k])
def test_some_blocks_add_up_parts_of_parts_there(name):
    plans = [LADDER[name].plan(m, n, k, 132) for m, k, n in SHAPES]
    assert any(plan.blocks > ladder.FAN_IN * plan.shared_tiles > 0 for plan in plans)


@on_gpu
@pytest.mark.case("1.4", "1.9", "1.11", "1.12", "1.50")
@pytest.mark.parametrize("tool", OPTIONS)
def test_every_version_is_clean(tool):
    assert_clean(sanitize(tool, *(["--every-thread-arrives"] if tool == "racecheck" else [])))


@on_gpu
@pytest.mark.case("1.50")
def test_memcheck_sees_a_planted_mistake():
    """Of a kernel that matmul launches: a memory pool could hide every overrun from the checks
    above."""
    run = sanitize("memcheck", str(TESTS / "planted_kernels" / "writes_past_the_row.cu"))
    assert run.returncode != 0, what_happened(run)
    assert "Invalid __global__ write" in run.stdout


@on_gpu
@pytest.mark.case("1.4", "1.11", "1.12")
@pytest.mark.parametrize("name", SEEN)
def test_a_fault_that_it_can_see_is_reported(name):
    _, expected = SEEN[name]
    run = planted_run(name)
    found = reports(run.stdout)[function_name(name)]
    assert any(expected in report for report in found), what_happened(run)


@on_gpu
@pytest.mark.parametrize("tool", OPTIONS)
def test_without_a_fault_the_same_kernels_are_clean(tool):
    kernels = sorted({str(KERNELS / f"{FAULTS[name].kernel}.cu") for name in SEEN})
    assert_clean(sanitize(tool, "--every-thread-arrives", *kernels))


def test_every_fault_that_the_simulator_finds_is_accounted_for():
    unseen = [name for names in UNSEEN.values() for name in names]
    assert sorted([*SEEN, *unseen]) == sorted(FAULTS)


@pytest.mark.parametrize("name", SEEN)
def test_a_planted_kernel_compiles_for_a_gpu(name):
    try:
        _, compiled = compile_planted(name, "sm_90")
    except sgemm.MissingError as error:
        pytest.skip(str(error))
    assert function_name(name).encode() in compiled.cubin


@pytest.mark.parametrize("vector", [True, False])
@pytest.mark.parametrize("name", FOR_THEIR_WARPS)
def test_a_version_where_every_thread_arrives_compiles_for_a_gpu(name, vector, tmp_path):
    changed = where_every_thread_arrives(LADDER[name], tmp_path)
    assert list(tmp_path.iterdir()) == [Path(changed.source)]
    try:
        sgemm.compile(changed, "sm_90", vector=vector)
    except sgemm.MissingError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("beside", [0, 1])
@pytest.mark.parametrize("name", FOR_THEIR_WARPS)
def test_a_version_where_every_thread_arrives_is_right(name, beside, tmp_path):
    """With float4 and without."""
    version = where_every_thread_arrives(LADDER[name], tmp_path)
    m, n, k = version.tile
    found, product = check(version, m + beside, n + beside, 7 * k + beside)
    assert found == []
    assert np.array_equal(product.c, product.in_integers())


def test_other_versions_are_run_as_they_are(tmp_path):
    others = [version for name, version in LADDER.items() if name not in FOR_THEIR_WARPS]
    assert FOR_THEIR_WARPS
    assert others
    for version in others:
        assert where_every_thread_arrives(version, tmp_path) is version


PIPELINE = (KERNELS / "pipeline.cu").read_text()


@pytest.mark.parametrize(
    "text",
    [
        PIPELINE.replace("lane == 0", "lane == 31"),
        PIPELINE.replace("MULTIPLIERS / 32);", "8);"),
        PIPELINE + PIPELINE,
    ],
)
def test_a_kernel_whose_warps_arrive_in_another_way_is_noticed(text):
    with pytest.raises(ValueError, match=r"a kernel with mbarriers has [02] places"):
        every_thread_arrives(text)


@pytest.mark.parametrize(
    ("name", "is_fault"),
    [
        ("arrives before it has read", True),
        ("arrives before the copies have", True),
        ("a warp that is not waited for", False),
    ],
)
def test_what_is_a_fault_where_every_thread_arrives(name, is_fault, tmp_path):
    """A thread that arrives for itself has nobody to wait for."""
    kernel = tmp_path / "planted.cu"
    kernel.write_text(every_thread_arrives(planted(name)))
    for seed in range(6):
        found, _ = check(from_file(kernel), 20, 72, 36, seed)
        kinds = [finding.kind for finding in found]
        assert FAULTS[name].kind in kinds if is_fault else kinds == []


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


def test_a_fault_that_hangs_or_fails_is_alone_in_it(tmp_path, monkeypatch):
    """All are run, each with its tool, and what a run has started ends with it."""
    fake = tmp_path / "compute-sanitizer"
    fake.write_text(
        "#!/bin/sh\n"
        f"echo \"$*\" >> '{tmp_path}/calls'\n"
        "for fault; do :; done\n"
        'case "$fault" in\n'
        '"writes beside C") sleep 100 & wait ;;\n'
        '"no commit") exit 3 ;;\n'
        "esac\n"
        'echo "========= Error: Race reported at kernel_that_$(echo "$fault" | tr " " _)"\n'
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setitem(globals(), "SECONDS_FOR_A_FAULT", 3)
    began = time.monotonic()
    runs = planted_runs.__wrapped__()
    assert time.monotonic() - began < 60
    assert runs["writes beside C"].returncode == 124
    assert runs["no commit"].returncode == 3
    for name in {*SEEN} - {"writes beside C", "no commit"}:
        assert list(reports(runs[name].stdout)) == [function_name(name)]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == len(SEEN)
    for name, (tool, _) in SEEN.items():
        (call,) = (call for call in calls if call.endswith(f" {TARGET} --planted {name}"))
        assert call.startswith(f"--tool={tool} --error-exitcode=9 ")
