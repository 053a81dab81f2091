"""``python -m benchmarks sweep``."""

import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest

import sgemm
from benchmarks import __main__ as command
from benchmarks import sweep
from benchmarks.checkout import ROOT
from sgemm import choices

pytest_plugins = ["fake_gpu"]


def run(capsys, *arguments):
    status = command.main(["sweep", *arguments])
    return status, capsys.readouterr()


def test_matmul_chooses_and_cublas_stands_beside(fake_gpu, capsys):
    problems = ("64x48x33", "20x300x70")
    status, printed = run(capsys, "--json", *(f"--problem={name}" for name in problems))
    found = json.loads(printed.out)
    assert status == 0
    assert found["schema"] == "benchmarks/sweep/1"
    assert [row["problem"] for row in found["rows"]] == list(problems)
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True)
    assert commit.startswith(found["environment"]["checkout"].removesuffix("-dirty"))
    for row in found["rows"]:
        m, n, k = map(int, row["problem"].split("x"))
        assert row["version"] == sgemm.ladder.fastest(tuple(sgemm.LADDER), m, n, k, 1)
        assert row["gflops"] == pytest.approx(2 * m * n * k / np.median(row["seconds"]) / 1e9)
        ratio = np.median(row["cublas_seconds"]) / np.median(row["seconds"])
        assert row["ratio_to_cublas"] == pytest.approx(ratio)
        assert row["wrong"] is None


def test_people_get_a_table_with_the_summary(fake_gpu, capsys):
    status, printed = run(capsys, "--problem=33x34x35")
    assert status == 0
    assert "33×34×35" in printed.out
    assert "…" not in printed.out
    assert "geometric mean" in printed.out


def test_matmul_without_later_versions_stands_beside(fake_gpu, capsys, monkeypatch):
    """What it would choose; where that is what it does choose, it is not measured twice."""
    monkeypatch.setattr(choices, "choose", lambda names, *_: sgemm.LADDER[names[-1]])
    options = ("--problem=64x48x33", "--up-to=v3", "--up-to=v5", "--up-to=v9")
    status, printed = run(capsys, "--json", *options)
    found = json.loads(printed.out)
    (row,) = found["rows"]
    assert status == 0
    assert [one["version"] for one in row["up_to"].values()] == ["v3", "v5", "v9"]
    assert row["version"] == "v9"
    for last, figures in row["up_to"].items():
        seconds = np.median(figures["seconds"])
        assert figures["gflops"] == pytest.approx(2 * 64 * 48 * 33 / seconds / 1e9)
        assert figures["ratio_to_cublas"] == pytest.approx(
            np.median(row["cublas_seconds"]) / seconds
        )
        assert found["summary"]["up_to"][last] == pytest.approx(figures["ratio_to_cublas"])
        assert (figures["seconds"] == row["seconds"]) == (last == "v9")


def test_a_version_that_the_gpu_cannot_run(fake_gpu, capsys, monkeypatch):
    old = replace(sweep.gpu.find(), compute_capability=(7, 5))
    monkeypatch.setattr(sweep.gpu, "find", lambda: old)
    status, printed = run(capsys, "--problem=64x48x33", "--up-to=v6")
    assert status == 2
    assert "v6" in printed.err


def test_a_wrong_result_has_no_speed(fake_gpu, capsys, monkeypatch):
    def wrong(a, b, *, out, version):
        out[...] = 1

    monkeypatch.setattr(sgemm, "matmul", wrong)
    status, printed = run(capsys, "--problem=33x34x35", "--json")
    (row,) = json.loads(printed.out)["rows"]
    assert status == 1
    assert row["gflops"] is None
    assert row["wrong"].startswith("matmul is wrong")


def test_the_summary():
    rows = [
        {
            "problem": problem,
            "ratio_to_cublas": mine,
            "up_to": {"v1": {"ratio_to_cublas": of}},
        }
        for problem, mine, of in (("a", 0.5, 0.1), ("b", 2.0, 0.4), ("c", None, None))
    ]
    assert sweep.summarise(rows) == {
        "geometric_mean": pytest.approx(1),
        "least": 0.5,
        "least_problem": "a",
        "up_to": {"v1": pytest.approx(0.2)},
    }
    assert sweep.summarise(rows[2:])["geometric_mean"] is None


def test_what_is_swept():
    names = [problem.name for problem in sweep.PROBLEMS]
    assert len(set(names)) == len(names) >= 40
    assert any(problem.k % 4 for problem in sweep.PROBLEMS)
    assert any(problem.a_offset for problem in sweep.PROBLEMS)


def test_without_a_gpu(capsys, monkeypatch):
    monkeypatch.setattr(sweep.gpu, "find", lambda: None)
    status, printed = run(capsys)
    assert status == 2
    assert "there is no GPU" in printed.err
