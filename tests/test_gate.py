"""``python -m benchmarks gate``: what is compared, by what, and what comes of it."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from functools import cache
from math import exp
from pathlib import Path
from random import Random
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from benchmarks import __main__ as command
from benchmarks import builds, gate, gate_report, gpu, turns
from benchmarks.builds import Build
from benchmarks.checkout import LADDER, load
from benchmarks.problems import PROBLEMS
from benchmarks.resources import ARCHITECTURES, why_not_run
from benchmarks.turns import Failure, SamplingError, SamplingProcess, Series
from benchmarks.verdict import PRECISE_FROM_ROUNDS, Verdict

pytest_plugins = ["fake_gpu"]

ROOT = Path(__file__).resolve().parent.parent
H200 = gpu.Gpu("NVIDIA H200", "0000:00:00.0", compute_capability=(9, 0), cuda="13.0")
ENVIRONMENT = {"gpu": H200.name, "driver": "580.00"}
ALL = len(gate.BENCHMARKS)
OF_V1 = sum(version == "v1" for version, _ in gate.BENCHMARKS)
RIGHT = {"fingerprint": "right", "resources": {"sm_90": {}}, "cubins": {}}


# Commits, built by asv


@cache  # asv finds the class as long as somebody holds it
def this_python():
    """A kind of asv environment that makes none: it is the tests' own Python."""
    from asv import environment

    class ThisPython(environment.Environment):
        tool_name = "this-python"

        def __init__(self, conf, python, requirements, variables):
            if python != "{}.{}".format(*sys.version_info[:2]):
                raise environment.EnvironmentUnavailable(python)
            self._python, self._requirements = python, requirements
            super().__init__(conf, python, requirements, variables)

        def _setup(self):
            Path(self._path).mkdir(parents=True)

        def find_executable(self, executable):
            return sys.executable

        def run(self, args, **options):
            return self.run_executable("python", args, **options)

    return ThisPython


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository that holds the package alone. asv builds its wheels with the tests' own Python
    and installs them into a folder."""
    pytest.importorskip("asv")
    folder = tmp_path / "project"
    folder.mkdir()
    for part in ("sgemm", "kernels"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, folder)
    python = f"{sys.executable} -m pip"
    configuration = {
        "version": 1,
        "project": "sgemm",
        "repo": ".",
        "dvcs": "git",
        "branches": ["HEAD"],
        "environment_type": this_python().tool_name,
        "env_dir": ".asv/env",
        "build_command": [
            f"{python} wheel --no-deps --no-build-isolation -w {{build_cache_dir}} {{build_dir}}"
        ],
        "install_command": [
            f"{python} install --upgrade --no-deps --target {tmp_path / 'site'} {{wheel_file}}"
        ],
        "uninstall_command": [f"{sys.executable} -c pass"],
    }
    (folder / "asv.conf.json").write_text(json.dumps(configuration))
    git(folder, "init", "--initial-branch=main")
    commit(folder, {"results/benchmarks.json": "{}"})
    monkeypatch.setattr(builds, "ROOT", folder)
    monkeypatch.setattr(gate_report, "ACCEPTED", folder / "results" / "accepted.jsonl")
    monkeypatch.setenv("ASV_PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setattr(gpu, "find", lambda: None)
    monkeypatch.setattr(gate, "ARCHITECTURES", ("sm_90",))
    return folder


def test_a_version_is_compared_at_what_it_computes_in_another_way():
    """v0 reads a column-major B anyway; v0 and v1 have no float4 path that operands rule out."""
    problems = {name: set(PROBLEMS) for name in LADDER}
    for name in ("v0", "v1"):
        problems[name] -= {"4096x4096x4095", "4096x4096x4096 A+1"}
    problems["v0"] -= {"4096x4096x4096 B column-major"}
    assert sorted(gate.BENCHMARKS) == sorted(
        (name, problem) for name, compared in problems.items() for problem in compared
    )


def git(folder, *arguments):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder, files):
    """Commit files: path to text, or to what makes the new text of the old one."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text(path.read_text()) if callable(text) else text)
    git(folder, "add", ".")
    git(folder, "commit", "--message", ", ".join(files))


def replaced(old, new):
    def edit(text):
        assert old in text
        return text.replace(old, new)

    return edit


def run(capsys, *arguments):
    status = command.main(["gate", "HEAD~1", "HEAD", *arguments])
    return status, capsys.readouterr()


def verdicts(printed):
    return {(r["version"], r["problem"]): r["verdict"] for r in json.loads(printed.out)["rows"]}


@pytest.mark.case("5.10")
@pytest.mark.parametrize("static", [[], ["--static"]])
def test_a_commit_of_documents_is_green_without_building(project, capsys, monkeypatch, static):
    commit(project, {"docs/new.md": "words", "README.md": "other words"})
    monkeypatch.setattr(builds, "build", None)
    status, printed = run(capsys, *static)
    assert status == 0, printed.err
    assert printed.out.startswith("### Gate: the same binary\n")


def test_comments_and_what_matmul_does_not_import_make_the_same_binary(project, capsys):
    """On a machine without a GPU."""
    commit(
        project,
        {
            "kernels/v1_coalesced.cu": lambda text: "// A comment.\n" + text,
            "kernels/copy_strided.cu": lambda text: text + "// Another.\n",
            "sgemm/doctor.py": lambda text: text + "\nSOMETHING = 1\n",
            "sgemm/multiply.py": lambda text: text.replace('"""', '"""Words. ', 1),
            "sgemm/ladder.py": replaced("naive, B column-major", "as naive as can be"),
        },
    )
    status, printed = run(capsys, "--json")
    assert status == 0, printed.err
    assert set(verdicts(printed).values()) == {"same binary"}


@pytest.mark.parametrize(
    ("files", "changed"),
    [
        pytest.param(
            {"kernels/v1_coalesced.cu": replaced("alpha *", "2 * alpha *")}, ["v1"], id="kernel"
        ),
        pytest.param(
            {"sgemm/ladder.py": replaced("tile=(32, 32, 64)", "tile=(32, 32, 32)")},
            ["v2"],
            id="launch",
        ),
        pytest.param(
            {"sgemm/multiply.py": replaced("THREADS = 256", "THREADS = 128")}, LADDER, id="host"
        ),
        pytest.param(
            {"kernels/copy_strided.cu": replaced("TILE + 1", "TILE + 2")}, LADDER, id="conversion"
        ),
    ],
)
def test_what_changed_needs_a_gpu(project, capsys, files, changed):
    commit(project, files)
    status, printed = run(capsys, "--markdown", str(project / "summary.md"))
    assert status == 2
    assert printed.out == ""
    assert printed.err.startswith(
        f"python -m benchmarks: there is no GPU, and {', '.join(changed)} changed: "
        "their speed cannot be compared; GPU: "
    )
    assert printed.err.endswith("; without a GPU, --static compares what takes none\n")
    assert printed.err.count("\n") == 1
    assert "there is no GPU" in (project / "summary.md").read_text()


def test_a_broken_build_is_named(project, capsys):
    commit(project, {"pyproject.toml": replaced('"sgemm.simulator"', '"sgemm.absent"')})
    status, printed = run(capsys)
    assert status == 2
    reason = printed.err.splitlines()[-1]
    assert re.search(r": building \w{8} failed: error: package directory .* not exist", reason)
    assert printed.err.splitlines()[-1].startswith("python -m benchmarks: ")


def test_a_missing_python_is_named(project, capsys):
    commit(
        project,
        {
            "asv.conf.json": replaced('"version": 1', '"version": 1, "pythons": ["3.99"]'),
            "kernels/v0_naive.cu": lambda text: text + "\n",
        },
    )
    status, printed = run(capsys)
    assert status == 2
    assert "there is no Python 3.99 to make a this-python environment with" in printed.err


def test_a_kernel_that_does_not_compile_is_no_measurement(project, capsys):
    commit(project, {"kernels/v2_shared_memory.cu": lambda text: text + "broken"})
    status, printed = run(capsys, "--json")
    assert status == 2
    found = verdicts(printed)
    assert found.pop(("v2", "1024x1024x1024")) == "no measurement"
    rows = [row for row in json.loads(printed.out)["rows"] if row["version"] == "v2"]
    what = r"head: v2_shared_memory\.cu does not compile: v2_shared_memory\.cu\(\d+\): error: "
    assert all(re.match(what, row["detail"]) for row in rows), rows[0]["detail"]
    assert "no measurement of" in printed.err
    assert found["v1", "1024x1024x1024"] == "same binary"


def test_an_unknown_commit_is_named(project, capsys):
    status = command.main(["gate", "nothing", "HEAD"])
    printed = capsys.readouterr()
    assert status == 2
    assert printed.err == "python -m benchmarks: 'nothing' is no commit of this repository\n"


def test_a_checkout_that_git_refuses_is_told_in_git_s_words(project, capsys, monkeypatch):
    """Not that there is no such commit."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    for variable in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):  # which may allow it
        monkeypatch.setenv(variable, os.devnull)
    status, printed = run(capsys, "--static")
    assert status == 2
    assert "git rev-parse failed: fatal: detected dubious ownership" in printed.err
    assert "safe.directory" in printed.err
    assert printed.err.count("\n") == 1


def test_outside_a_checkout_there_are_no_commits(tmp_path, capsys, monkeypatch):
    for module in (builds, gate):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    status, printed = run(capsys)
    assert status == 2
    assert printed.err == (
        f"python -m benchmarks: {tmp_path} is no git checkout: there are no commits\n"
    )


def test_static_series_are_exact(project, capsys):
    """Both ways: more shared memory and barriers are worse, fewer are better."""
    kernel = "kernels/v2_shared_memory.cu"
    right = (project / kernel).read_text()
    planted = right.replace("[TILE_K][TILE_N]", "[TILE_K][TILE_N + 4]").replace(
        "__syncthreads(); // nobody", "__syncthreads(); __syncthreads(); // nobody"
    )
    commit(project, {kernel: planted})
    status, printed = run(capsys, "--static", "--json")
    assert status == 1
    found = verdicts(printed)
    assert found["v2", "sm_90 shared bytes"] == "worse"
    assert found["v2", "sm_90 spill bytes"] == "same"
    assert found["v2", "256x256x256 barriers"] == "worse"
    assert found["v2", "256x256x256 fmas per shared load"] == "same"

    commit(project, {kernel: right})
    status, printed = run(capsys, "--static", "--json")
    assert status == 0
    assert verdicts(printed)["v2", "sm_90 shared bytes"] == "better"
    assert verdicts(printed)["v2", "256x256x256 barriers"] == "better"


def test_a_version_is_compared_on_every_architecture_that_it_runs_on(project, capsys, monkeypatch):
    """Of those that the gate compares; static and dynamic shared memory. One that head alone does
    not run on any more is lost."""
    monkeypatch.setattr(gate, "ARCHITECTURES", ARCHITECTURES)
    monkeypatch.setattr(gate, "LADDER", {name: LADDER[name] for name in ("v7", "v9")})
    monkeypatch.setattr(gate, "SHAPES", ["255x257x63"])
    commit(
        project,
        {
            "kernels/v7_stream_k.cu": replaced("empty[STAGES]", "empty[2 * STAGES]"),
            "kernels/v9_split_warps.cu": replaced("float b[STAGES]", "float unused[32], b[STAGES]"),
            "sgemm/ladder.py": replaced("shared_bytes=76800", "shared_bytes=76928"),
        },
    )
    status, printed = run(capsys, "--static", "--json")
    assert status == 1, printed.err
    rows = {(row["version"], row["problem"]): row for row in json.loads(printed.out)["rows"]}
    shared = {key: row for key, row in rows.items() if key[1].endswith(" shared bytes")}
    assert shared.keys() == {
        ("v7", "sm_90 shared bytes"),
        *(("v9", f"{arch} shared bytes") for arch in ARCHITECTURES),
    }
    assert {row["verdict"] for row in shared.values()} == {"worse"}
    assert shared["v7", "sm_90 shared bytes"]["before"] == LADDER["v7"].shared_bytes
    assert shared["v7", "sm_90 shared bytes"]["after"] == LADDER["v7"].shared_bytes + 3 * 8
    assert shared["v9", "sm_80 shared bytes"]["before"] == 76800
    assert shared["v9", "sm_80 shared bytes"]["after"] == 76928
    assert {rows["v9", f"{arch} registers"]["verdict"] for arch in ARCHITECTURES} == {"same"}

    v9_runs_from = "min_compute_capability=(8, 0)"
    commit(project, {"sgemm/ladder.py": replaced(v9_runs_from, "min_compute_capability=(9, 0)")})
    status, printed = run(capsys, "--static")
    assert status == 1, printed.err
    assert printed.out.startswith("### Gate: 2 worse of ")
    for arch in ("sm_80", "sm_89"):
        lost = f"| v9 | {arch} |  |  |  | **worse** | head: v9 needs compute capability 9.0 |"
        assert lost in printed.out.splitlines()
    assert "v9 | sm_90 shared bytes | 76,928 bytes | 76,928 bytes" in printed.out


def test_every_version_runs_on_an_architecture_that_is_compared():
    for version in LADDER.values():
        assert not all(why_not_run(version, arch) for arch in ARCHITECTURES), version.name


RUNS = {"registers": 32, "spill_bytes": 0, "shared_bytes": 0}
DOES_NOT_RUN = {"skip": "v1 needs compute capability 9.0"}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (DOES_NOT_RUN, DOES_NOT_RUN, []),
        (DOES_NOT_RUN, RUNS, [("sm_80", Verdict.NOT_COMPARABLE, f"base: {DOES_NOT_RUN['skip']}")]),
        (RUNS, DOES_NOT_RUN, [("sm_80", Verdict.WORSE, f"head: {DOES_NOT_RUN['skip']}")]),
        (
            RUNS,
            RUNS,
            [
                (f"sm_80 {s}", Verdict.SAME, "")
                for s in ("registers", "spill bytes", "shared bytes")
            ],
        ),
    ],
)
def test_where_a_version_does_not_run(before, after, expected):
    records = ({"resources": {"sm_80": figures}} for figures in (before, after))
    rows = gate._compare_resources("v1", "sm_80", *records)
    assert [(row.problem, row.verdict, row.detail) for row in rows] == expected


def test_counts_have_a_direction():
    """More multiply-adds per load are better, more bytes are worse; what a version does not do is
    not compared, nor what could not be counted."""
    counts = dict.fromkeys(gate.TRACE_SERIES, 2.5)
    less, more = counts | {"bytes": 1, "barriers": None}, counts | {"fmas_per_global_load": 3.5}
    rows = {row.problem: row for row in gate._compare_counts("v2", "s", less, more)}
    assert rows["s bytes"].verdict is Verdict.WORSE
    assert rows["s fmas per global load"].verdict is Verdict.BETTER
    assert rows["s sectors per global load"].verdict is Verdict.SAME
    assert "s barriers" not in rows
    assert gate_report._figure(2.5, "sectors") == "2.5 sectors"
    assert gate_report._figure(65536.4, "bytes") == "65,536 bytes"
    (row,) = gate._compare_counts("v2", "s", counts, {"skip": "no compiler"})
    assert (row.verdict, row.detail) == (Verdict.NOT_COMPARABLE, "head: no compiler")
    (row,) = gate._compare_counts("v2", "s", counts, {"error": "deadlock"})
    assert row.verdict is Verdict.NO_MEASUREMENT
    (row,) = gate._compare_counts("v2", "s", {"error": "deadlock"}, counts)
    assert row.verdict is Verdict.NOT_COMPARABLE


# Measuring, with samples that are given


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """A gate on a GPU where v1 has changed. ``gflops`` holds base's and head's; ``outcomes``, by
    side and problem, what is taken in the stead of such samples; ``resources``, by side, what v1
    has there; ``pairs`` the builds that were sampled."""
    state = SimpleNamespace(gflops=(100, 100), outcomes={}, pairs=[], resources={})
    random = Random(0)

    def fingerprint(build, architectures):
        assert architectures == ["sm_90"]
        resources = {"sm_90": state.resources.get(build.commit, RUNS)}
        changed = RIGHT | {"fingerprint": build.commit, "resources": resources}
        return {name: changed if name == "v1" else RIGHT for name in LADDER}

    def outcome(side, problem):
        if given := state.outcomes.get((side, problem)):
            return given.pop(0)
        gflops = state.gflops[side == "head"]
        return {0.0: series(gflops, problem, random)}

    def take_turns(processes, version, problem, benchmarks):
        assert version == "v1"
        return [outcome(process.build.commit, problem) for process in processes]

    def get_ready(processes):
        state.pairs.append([process.build.commit for process in processes])
        for process in processes:
            process.environment = ENVIRONMENT

    pair = [Build(side, tmp_path, sys.executable, {}) for side in ("base", "head")]
    monkeypatch.setattr(builds, "resolve", lambda name: name)
    monkeypatch.setattr(builds, "same_sources", lambda base, head: False)
    monkeypatch.setattr(builds, "build", lambda commits: pair)
    monkeypatch.setattr(gate, "_fingerprints", fingerprint)
    monkeypatch.setattr(gate, "take_turns", take_turns)
    monkeypatch.setattr(gate, "get_ready", get_ready)
    monkeypatch.setattr(gate, "why_slower", lambda version, *_: "The instructions differ.")
    monkeypatch.setattr(gpu, "find", lambda: H200)
    monkeypatch.setattr(gate_report, "ACCEPTED", tmp_path / "accepted.jsonl")
    state.accepted = tmp_path / "accepted.jsonl"
    return state


def series(gflops, problem, random, clock=1e9):
    flops = gate.PROBLEMS[problem].flops
    seconds = [flops / gflops / 1e9 * exp(random.gauss(0, 0.0005)) for _ in range(10)]
    return Series(seconds, [value * clock for value in seconds], [{}] * 10)


def measure(capsys, *arguments):
    status = command.main(["gate", "base", "head", *arguments])
    return status, capsys.readouterr()


def test_the_same_speed_is_green(measured, capsys):
    status, printed = measure(capsys)
    assert status == 0
    assert printed.out.startswith("### Gate: nothing is slower\n")
    assert "NVIDIA H200, driver 580.00" in printed.out
    unchanged = ", ".join(name for name in LADDER if name != "v1")
    assert f"The same binary, and not compared further: {unchanged}." in printed.out
    assert measured.pairs == [["base", "head"]]


def test_a_rise_of_gflops_is_an_improvement(measured, capsys):
    measured.gflops = 100, 160
    status, printed = measure(capsys, "--json")
    assert status == 0
    document = json.loads(printed.out)
    assert (document["schema"], document["command"]) == ("benchmarks/gate/1", "gate")
    rows = [row for row in document["rows"] if row["version"] == "v1"]
    assert {row["verdict"] for row in rows} == {"faster"}
    for row in rows:
        assert row["before"] == pytest.approx(100, rel=0.01)
        assert row["after"] == pytest.approx(160, rel=0.01)
        assert row["change_in_seconds"]["change"] == pytest.approx(-0.375, rel=0.01)


def test_a_fall_of_gflops_is_slower(measured, capsys, tmp_path):
    measured.gflops = 160, 50
    summary = tmp_path / "summary.md"
    status, printed = measure(capsys, "--markdown", str(summary))
    assert status == 1
    assert printed.out.startswith(f"### Gate: {OF_V1} slower of {ALL} benchmarks\n")
    assert "| v1 | 1024×1024×1024 | 160 GFLOPS | 50 GFLOPS | +2" in printed.out
    assert "<details><summary>Why v1 is slower</summary>\n\nThe instructions differ." in printed.out
    assert summary.read_text() == printed.out
    assert not measured.accepted.exists()


def test_a_small_slowdown_is_confirmed_by_fresh_processes(measured, capsys):
    measured.gflops = 101, 100
    status, printed = measure(capsys, "--json")
    assert status == 1
    assert measured.pairs == [["base", "head"], ["head", "base"]]
    row = next(row for row in json.loads(printed.out)["rows"] if row["version"] == "v1")
    assert row["verdict"] == "slower"
    assert len(row["samples"]) == 2
    assert row["change_in_cycles"]["change"] == pytest.approx(0.01, rel=0.1)


def test_one_process_s_bad_luck_is_no_alarm(measured, capsys):
    problem = "4096x4096x4096"
    slow = {0.0: series(99.3, problem, Random(1))}
    measured.outcomes = {("head", problem): [slow]}
    status, printed = measure(capsys, "--json")
    assert status == 0
    assert measured.pairs == [["base", "head"], ["head", "base"]]
    assert verdicts(printed)["v1", problem] == "same"


def test_what_stays_ambiguous_is_red(measured, capsys):
    """Slower in seconds and not in cycles, twice."""
    problem = "2048x2048x2048"
    slow_clock = {0.0: series(98, problem, Random(1), clock=0.98e9)}
    measured.outcomes = {("head", problem): [slow_clock, slow_clock]}
    status, printed = measure(capsys)
    assert status == 2
    assert printed.out.startswith(f"### Gate: 1 ambiguous of {ALL} benchmarks\n")
    assert "the clocks differed" in printed.out
    last = printed.err.splitlines()[-1]
    assert last == f"python -m benchmarks gate: 1 ambiguous of {ALL} benchmarks"


@pytest.mark.parametrize(
    ("side", "failure", "status", "verdict"),
    [
        ("head", Failure("wrong: 3 of 9 elements", wrong=True), 1, "wrong"),
        ("head", Failure("an illegal memory access was encountered"), 2, "no measurement"),
        ("base", Failure("an illegal memory access was encountered"), 2, "no measurement"),
        ("base", Failure("wrong: 3 of 9 elements", wrong=True), 0, "not comparable"),
    ],
)
def test_failures_are_named_for_what_they_are(measured, capsys, side, failure, status, verdict):
    problem = "1024x1024x1024"
    measured.outcomes = {(side, problem): [failure]}
    exit_status, printed = measure(capsys)
    assert exit_status == status
    row = next(line for line in printed.out.splitlines() if verdict in line and line[0] == "|")
    assert f"{side}: {failure.reason}" in row
    assert "slower of" not in printed.out


def test_an_accepted_slowdown_is_green_and_remembered(measured, capsys):
    measured.gflops = 160, 50
    status, printed = measure(capsys, "--accept", "Half the registers: two blocks fit an SM.")
    assert status == 0
    assert printed.out.startswith(f"### Gate: {OF_V1} slower and accepted\n")
    assert "**Accepted:** Half the registers" in printed.out
    (entry,) = map(json.loads, measured.accepted.read_text().splitlines())
    assert entry["commit"] == "head"
    assert entry["gpu"] == "NVIDIA H200"
    assert entry["reason"] == "Half the registers: two blocks fit an SM."
    assert len(entry["changes"]) == OF_V1


def test_what_is_worse_and_accepted_is_called_so():
    rows = [gate_report.Row("v1", "sm_90 registers", Verdict.WORSE)] * 3
    report = gate_report.Report("registers", "base", "head", rows)
    report.accept("wanted")
    assert report.headline() == "3 worse and accepted"


def test_a_wrong_result_is_not_accepted(measured, capsys):
    measured.gflops = 160, 50
    failure = Failure("wrong: 3 of 9 elements", wrong=True)
    measured.outcomes = {("head", "1024x1024x1024"): [failure]}
    status, _ = measure(capsys, "--accept", "It is meant.")
    assert status == 1


@pytest.mark.parametrize("reason", ["", "  "])
def test_acceptance_needs_a_reason(measured, capsys, reason):
    measured.gflops = 160, 50
    status, _ = measure(capsys, "--accept", reason)
    assert status == 1
    assert not measured.accepted.exists()


@pytest.mark.parametrize(
    ("sides", "status", "verdict", "detail"),
    [
        (["base", "head"], 0, "not comparable", "head"),
        (["base"], 0, "not comparable", "base"),
        (["head"], 1, "**worse**", "head"),
    ],
)
def test_what_does_not_run_on_this_gpu_is_not_timed(
    measured, capsys, sides, status, verdict, detail
):
    measured.resources = dict.fromkeys(sides, DOES_NOT_RUN)
    exit_status, printed = measure(capsys)
    assert exit_status == status
    assert measured.pairs == []
    row = f"| v1 | 1024×1024×1024 |  |  |  | {verdict} | {detail}: {DOES_NOT_RUN['skip']} |"
    assert row in printed.out.splitlines()
    assert "Why v1 is slower" not in printed.out


# What is written


@pytest.mark.parametrize("bad", ["nowhere/summary.md", "."])
def test_a_file_that_cannot_be_written_is_named_before_anything_is_done(
    tmp_path, capsys, monkeypatch, bad
):
    """Even before a commit that there is none of."""
    monkeypatch.setattr(builds, "resolve", pytest.fail)
    status, printed = measure(capsys, "--markdown", str(tmp_path / bad))
    assert status == 2
    assert re.fullmatch(
        rf"python -m benchmarks: --markdown: {tmp_path / bad} cannot be written \(.*\)\n",
        printed.err,
    )


def test_an_acceptance_that_cannot_be_kept_is_named_before_anything_is_done(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(builds, "resolve", pytest.fail)
    monkeypatch.setattr(gate_report, "ACCEPTED", tmp_path / "nowhere" / "accepted.jsonl")
    status, printed = measure(capsys, "--accept", "It is meant.")
    assert status == 2
    assert "--accept: " in printed.err
    assert "accepted.jsonl cannot be written (No such file or directory)" in printed.err


def test_nothing_that_is_accepted_leaves_no_file(measured, capsys):
    status, _ = measure(capsys, "--accept", "It is meant.")
    assert status == 0
    assert not measured.accepted.exists()


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_finished_run_is_printed_whatever_becomes_of_the_file(
    measured, capsys, monkeypatch, tmp_path, arguments
):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    status, printed = measure(capsys, "--markdown", str(tmp_path / "summary.md"), *arguments)
    assert status == 2
    assert "nothing is slower" in printed.out or json.loads(printed.out)["status"] == 0
    assert printed.err.endswith("python -m benchmarks: No space left on device\n")


def test_a_full_disk_does_not_hide_why_nothing_could_be_told(
    measured, capsys, monkeypatch, tmp_path
):
    def full(*_):
        raise OSError("No space left on device")

    def busy(*_):
        raise gpu.GpuBusyError("another process computes on the GPU")

    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr(gate, "take_turns", busy)
    status, printed = measure(capsys, "--markdown", str(tmp_path / "summary.md"))
    assert status == 2
    assert "another process computes on the GPU" in printed.err


def test_a_busy_gpu_is_named(measured, capsys, monkeypatch):
    def busy(*_):
        raise gpu.GpuBusyError("another process computes on the GPU (processes there: 7)")

    monkeypatch.setattr(gate, "take_turns", busy)
    status, printed = measure(capsys)
    assert status == 2
    assert "another process computes on the GPU" in printed.err


@pytest.mark.parametrize("name", ["asv", "rich"])
def test_a_package_that_is_not_there_is_told_how_to_install(capsys, monkeypatch, name):
    error = ModuleNotFoundError(f"No module named {name!r}")
    monkeypatch.setattr(gate, "run", Mock(side_effect=error))
    assert command.main(["gate", "HEAD~1", "HEAD"]) == 2
    reason = f"{error}; pip install '.[dev]' in the checkout brings what the benchmarks need"
    assert capsys.readouterr().err == f"python -m benchmarks: {reason}\n"


# The processes that take turns

CHILD = """
import json, os, sys
name, folder = sys.argv[1], sys.argv[2]
log = open(os.path.join(folder, "log"), "a")
def emit(record):
    print(json.dumps({"answer": record}), flush=True)
if name == "absent":
    sys.exit("ImportError: no cupy")
emit({"gpu": name})
for line in sys.stdin:
    command, arguments = json.loads(line)
    print(name, command, arguments.get("share", ""), file=log, flush=True)
    version = arguments.get("version", "")
    if command == "load" and name in version:
        if "dies" in version:
            sys.exit("CUDA_ERROR_ILLEGAL_ADDRESS")
        if "hangs" in version:
            sys.stdin.read()
        kind = "busy" if "busy" in version else "wrong"
        emit({kind: "the reason"})
    elif command == "load":
        noise, samples = "noisy" in version, 0
        rounds = 20 if "long" in version else 4
        emit({"loaded": True})
    elif command == "warm_up":
        emit({"rounds": rounds})
    elif command == "sample":
        samples += 1
        seconds = 1.0 + arguments["share"] + noise * (name == "head") * (samples % 2) / 10
        emit({"seconds": seconds, "cycles": 2.0, "reading": {}})
    else:
        emit({"finished": True})
"""


MET = """
import json, os, sys, time
folder = sys.argv[2]
def emit(record):
    print(json.dumps({"answer": record}), flush=True)
def present(what):
    return sum(name.startswith(what) for name in os.listdir(folder))
def put(what):
    path = os.path.join(folder, what + sys.argv[1])
    open(path, "w").close()
    return path
emit({"gpu": "fake"})
for line in sys.stdin:
    command, arguments = json.loads(line)
    if command == "load":
        put("loading")
        while present("loading") < 2:  # for ever, were they asked one by one
            time.sleep(0.001)
    if command == "warm_up":
        path = put("warming")
        time.sleep(0.05)
        alone = present("warming") == 1
        os.unlink(path)
        if not alone:
            sys.exit("two warm the GPU up")
    emit({"rounds": 3, "seconds": 1.0, "cycles": 2.0, "reading": {}})
"""


class Played(Build):
    """A build whose processes are played by a script."""

    def command(self, module, args, keys=()):
        return [self.python, str(self.folder / "child.py"), self.commit, str(self.folder)]


@pytest.fixture
def players(tmp_path):
    (tmp_path / "child.py").write_text(CHILD)

    def start(*names, planted=None):
        return [SamplingProcess(Played(n, tmp_path, sys.executable, {}), planted) for n in names]

    return start


def test_processes_take_turns(players, tmp_path):
    base, head = players("base", "head")
    with base, head:
        outcomes = turns.take_turns([base, head], "v1", "1024x1024x1024", 1)
    assert [outcome[0.0].seconds for outcome in outcomes] == [[1.0] * 4] * 2
    log = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    order = [name for name, command, *_ in log if command == "sample"]
    assert order == ["base", "head", "head", "base"] * 2
    assert log[-2:] == [["base", "finish"], ["head", "finish"]]


def test_processes_load_at_once_and_warm_up_one_by_one(players, tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "ANSWER_TIMEOUT_SECONDS", 5.0)
    base, head = players("base", "head")
    (tmp_path / "child.py").write_text(MET)
    with base, head:
        outcomes = turns.take_turns([base, head], "v1", "1024x1024x1024", 1)
    series = {0.0: Series([1.0] * 3, [2.0] * 3, [{}] * 3)}
    assert outcomes == [series, series]


@pytest.mark.parametrize(
    ("version", "rounds"),
    [("long", PRECISE_FROM_ROUNDS), ("long and noisy", 20), ("noisy", 4)],
)
def test_rounds_go_on_until_they_are_precise_or_out_of_time(players, version, rounds):
    base, head = players("base", "head")
    with base, head:
        outcomes = turns.take_turns([base, head], version, "1024x1024x1024", 1)
    assert [len(outcome[0.0].seconds) for outcome in outcomes] == [rounds] * 2


def test_every_two_of_many_processes_must_be_precise(players):
    names = ["base", "another", "head"]
    with ExitStack() as stack:
        processes = [stack.enter_context(process) for process in players(*names)]
        steady, _, noisy = turns.take_turns(processes, "long and noisy", "1024x1024x1024", 1)
    assert len(steady[0.0].seconds) == len(noisy[0.0].seconds) == 20


def test_planted_shares_are_sampled_in_the_same_turn(players):
    base, head = players("base", "head", planted=(0.01, 0.05))
    with base, head:
        _, planted = turns.take_turns([base, head], "v1", "1024x1024x1024", 1, planted=True)
        _, identical = turns.take_turns([base, head], "v1", "1024x1024x1024", 1)
    assert {share: series.seconds[0] for share, series in planted.items()} == {
        0.0: 1.0,
        0.01: 1.01,
        0.05: 1.05,
    }
    assert identical.keys() == {0.0}


def test_a_process_that_dies_costs_one_benchmark(players):
    base, head = players("base", "head")
    with base, head:
        right, dead = turns.take_turns([base, head], "head dies", "1024x1024x1024", 1)
        assert dead == Failure("the process ended with status 1; CUDA_ERROR_ILLEGAL_ADDRESS")
        assert right == {0.0: Series()}  # there is nothing to compare it with
        again = turns.take_turns([base, head], "v1", "1024x1024x1024", 1)
    assert all(isinstance(outcome, dict) for outcome in again)


def test_a_process_that_hangs_is_ended(players, monkeypatch):
    monkeypatch.setattr(turns, "ANSWER_TIMEOUT_SECONDS", 0.5)
    base, head = players("base", "head")
    with base, head:
        _, hung = turns.take_turns([base, head], "head hangs", "1024x1024x1024", 1)
    assert hung == Failure("no answer within 0 s")


def test_a_wrong_result_is_told_from_other_failures(players):
    base, head = players("base", "head")
    with base, head:
        _, wrong = turns.take_turns([base, head], "head wrong", "1024x1024x1024", 1)
    assert wrong == Failure("the reason", wrong=True)


@pytest.mark.parametrize("name", ["base", "head"])
def test_somebody_else_on_the_gpu_ends_all(players, name):
    """And no answer is left, which would be taken for the next one."""
    base, head = players("base", "head")
    with base, head:
        with pytest.raises(gpu.GpuBusyError, match="the reason"):
            turns.take_turns([base, head], f"{name} busy", "1024x1024x1024", 1)
        again = turns.take_turns([base, head], "v1", "1024x1024x1024", 1)
    assert [outcome[0.0].seconds for outcome in again] == [[1.0] * 4] * 2


def test_a_process_that_cannot_start_ends_all(players):
    base, absent = players("base", "absent")
    with base, absent, pytest.raises(SamplingError, match=r"absent cannot be sampled.*no cupy"):
        turns.take_turns([base, absent], "v1", "1024x1024x1024", 1)


@pytest.mark.skipif(gpu.find() is not None, reason="there is a GPU")
def test_a_real_process_without_a_gpu_says_so():
    process = SamplingProcess(builds.of_checkout(sys.executable))
    with process, pytest.raises(SamplingError, match="AssertionError: the parent has found a GPU"):
        turns.get_ready([process])


# What such a process does


@pytest.fixture
def commanded(fake_gpu, monkeypatch):
    """Gives the process's answers to commands, on the fake GPU."""
    monkeypatch.setattr(turns, "Cublas", fake_gpu.Cublas)
    monkeypatch.setattr(turns, "WARM_UP_CAP_SECONDS", 0.01)
    monkeypatch.setattr(turns.Operands, "floats", lambda problem: problem.m * problem.k * 2)
    monkeypatch.setattr(turns, "PROBLEMS", {"small": turns.parse(SMALL)})
    monkeypatch.setattr(turns, "CHECKS", [turns.parse(SMALL)])
    for constant in ("ESTIMATE_SECONDS", "WARM_UP_CAP_SECONDS", "LEAD_IN_BELOW_SECONDS"):
        monkeypatch.setattr(turns.timing, constant, None)  # which the process sets
    spun = []

    def spin(grid, block, args):
        spun.append(args[0].item())

    monkeypatch.setattr(fake_gpu.cupy.RawModule, "spin", staticmethod(spin), raising=False)

    def answers(*commands, args=()):
        lines = [json.dumps(line) for line in commands]
        monkeypatch.setattr(turns.sys, "stdin", lines)
        found = []
        turns.answer(args, [], lambda key, record: found.append(record))
        return found

    return SimpleNamespace(answers=answers, spun=spun, gpu=fake_gpu)


SMALL = "32x32x32"
LOAD = ["load", {"version": "v1", "problem": SMALL, "processes": 2}]
WARM_UP = ["warm_up", {}]
SAMPLE = ["sample", {"share": 0.0}]
FINISH = ["finish", {"processes": 2}]


def test_a_process_samples_and_verifies(commanded):
    ready, loaded, warm, sample, finished = commanded.answers(LOAD, WARM_UP, SAMPLE, FINISH)
    assert ready["gpu"] == "Fake GPU"
    assert loaded == {"loaded": True}
    assert turns.MIN_ROUNDS <= warm["rounds"] <= turns.MAX_ROUNDS
    assert sample["seconds"] > 0
    assert sample["cycles"] > 0.9 * sample["seconds"] * 1.98e9  # the CPU may stall in between
    assert sample["reading"]["sm_mhz"] == 1980
    assert finished == {"finished": True}
    assert commanded.spun == []


def test_the_device_is_warmed_up_on_command(commanded, monkeypatch):
    warm_ups, warm_up = [], turns.TurnsSampler.warm_up
    monkeypatch.setattr(
        turns.TurnsSampler, "warm_up", lambda self: warm_ups.append(self) or warm_up(self)
    )
    commanded.answers(LOAD)
    assert warm_ups == []
    commanded.answers(LOAD, WARM_UP, SAMPLE)
    assert len(warm_ups) == 1
    for constant in ("ESTIMATE_SECONDS", "WARM_UP_CAP_SECONDS", "LEAD_IN_BELOW_SECONDS"):
        assert getattr(turns.timing, constant) == getattr(turns, constant)


def test_the_check_of_results_is_compiled_before_a_process_is_ready(commanded, monkeypatch):
    checked = []
    check = turns.Product.verify

    def verify(product, launched):
        check(product, launched)
        checked.append(product.operands.b[0].flags.c_contiguous)

    monkeypatch.setattr(turns.Product, "verify", verify)
    (ready,) = commanded.answers()
    assert ready["gpu"] == "Fake GPU"
    assert checked == [True, False]


def test_the_check_of_results_is_compiled_for_one_block_and_for_several():
    edge = load("residual")._BLOCK_EDGE
    assert [(problem.m > edge, problem.n > edge) for problem in turns.CHECKS] == [
        (False, False),
        (True, True),
    ]


def test_a_planted_slowdown_is_a_share_of_the_batch(commanded):
    planted = ["sample", {"share": 0.05}]
    _, _, _, plain, _, _ = commanded.answers(
        LOAD, WARM_UP, SAMPLE, planted, FINISH, args=[turns.CAN_BE_SLOWED]
    )
    assert commanded.spun[0] == 0
    launches = commanded.spun[-1] / (0.05 * plain["cycles"])
    assert round(launches) >= 1
    assert launches == pytest.approx(round(launches), abs=0.01)


def test_a_wrong_kernel_is_answered(commanded, monkeypatch):
    import sgemm

    monkeypatch.setattr(sgemm, "matmul", lambda a, b, out, version: out.fill(0), raising=False)
    _, loaded = commanded.answers(LOAD)
    assert loaded["wrong"].startswith("wrong: ")


def test_a_busy_gpu_is_answered(commanded, monkeypatch):
    monkeypatch.setattr(commanded.gpu.Monitor, "processes", 3)
    _, loaded = commanded.answers(LOAD)
    assert loaded == {"busy": "another process computes on the GPU"}


# Causes


def test_the_instructions_that_differ(tmp_path):
    import sgemm
    from benchmarks import sass

    if sass.find_disassembler() is None:
        pytest.skip("there is no nvdisasm")
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(sgemm.compile("v0").cubin)
    other.write_bytes(sgemm.compile("v1").cubin)
    difference = sass.difference(one, other)
    assert re.match(r"\d+ instructions became \d+: .*[+-]\d+ [A-Z]", difference)
    assert "```diff\n--- base\n+++ head\n" in difference
    assert len(difference.splitlines()) < sass.MAX_LINES + 10
    assert sass.difference(one, one) == "The instructions are the same."


def test_without_a_disassembler_the_summary_says_so(tmp_path, monkeypatch):
    from benchmarks import sass

    monkeypatch.setattr(sass, "find_disassembler", lambda: None)
    assert "no nvdisasm" in sass.difference(tmp_path, tmp_path)


def test_both_profiles_stand_beside_each_other(tmp_path, monkeypatch):
    from benchmarks import causes

    ncu = tmp_path / "ncu"
    ncu.write_text(
        textwrap.dedent("""\
        #!/bin/sh
        exit 0
        """)
    )
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    figures = [
        {
            "version": "v1",
            "seconds": seconds,
            "bottleneck": bottleneck,
            "stalls": {bottleneck.replace(" ", "_"): 0.5},
            "pipes": {"fma": 0.25},
            "rates": {"occupancy": None},
        }
        for seconds, bottleneck in ((0.001, "barrier"), (0.002, "long scoreboard"))
    ]
    monkeypatch.setattr(causes, "_profile", lambda *_: figures.pop(0))
    pair = [Build(side, tmp_path, sys.executable, {}) for side in ("base", "head")]
    cubin = tmp_path / "cubin"
    cubin.write_bytes(b"")
    text = causes.why_slower("v1", pair, [{"cubins": {"sm_90": str(cubin)}}] * 2)
    assert "The machine code is the same" in text
    assert "| time, ms | 1.000 | 2.000 |" in text
    assert "| stalled: long scoreboard |  | 50.0% |" in text
    assert "| busy: fma | 25.0% | 25.0% |" in text


def test_every_verdict_is_green_or_red():
    green = {Verdict.FASTER, Verdict.SAME, Verdict.SAME_BINARY, Verdict.BETTER}
    assert set(Verdict) == {*gate_report.RED, *green, Verdict.NOT_COMPARABLE}
