"""``python -m benchmarks table``."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sgemm
from benchmarks import __main__ as command
from benchmarks import ffma_peak, gpu, table, timing
from sgemm import LADDER, doctor, simulator
from sgemm.simulator.counts import total

pytest_plugins = ["fake_gpu"]

ROOT = Path(__file__).resolve().parent.parent
SMALL = "64x48x33"
SUBJECTS = [*LADDER, "cublas", "FFMA peak"]


def run(capsys, *arguments):
    status = command.main(["table", "--problem", SMALL, *arguments])
    return status, capsys.readouterr()


def replace_kernel(monkeypatch, replaced, kernel):
    """Let ``kernel(a, b, out)`` stand in for one version."""
    right = sgemm.matmul

    def matmul(a, b, *, out, version):
        if version.name == replaced:
            return kernel(a, b, out)
        return right(a, b, out=out, version=version)

    monkeypatch.setattr(sgemm, "matmul", matmul, raising=False)


def test_every_version_is_measured_in_one_run(fake_gpu, capsys):
    status, printed = run(capsys, "--json")
    document = json.loads(printed.out)
    assert status == 0
    assert document["schema"] == "benchmarks/table/1"
    assert document["command"] == "table"
    assert document["environment"]["gpu"] == "Fake GPU"
    assert document["environment"]["problem"] == SMALL
    assert document["environment"]["stopped"]
    rows = document["rows"]
    assert [row["version"] for row in rows] == SUBJECTS
    for row in rows:
        assert row["verdict"] == "right"
        assert len(row["seconds"]) == len(row["cycles"]) >= timing.MIN_SAMPLES
        assert row["low_end_gflops"] >= row["gflops"]
        assert row["readings"][0]["sm_mhz"] == 1980
    *products, peak = rows
    for before, row in zip([None, *products], products[:-1], strict=False):
        assert row["gain"] == (before and pytest.approx(row["gflops"] / before["gflops"]))
        assert row["share_of_peak"] == pytest.approx(row["gflops"] / peak["gflops"])
        assert row["ratio_to_cublas"] == pytest.approx(row["gflops"] / products[-1]["gflops"])
        assert 0 < row["error_over_bound"] < 1
        assert row["article_gflops"] is None  # of another problem
        flops = 2 * 64 * 48 * 33
        assert row["gflops"] == pytest.approx(flops / np.median(row["seconds"]) / 1e9)
        assert row["low_end_gflops"] == pytest.approx(flops / min(row["seconds"]) / 1e9)


def test_people_get_a_table(fake_gpu, capsys):
    status, printed = run(capsys)
    assert status == 0
    assert all(f"│ {name} " in printed.out for name in SUBJECTS)
    assert "Fake GPU" in printed.out
    assert "…" not in printed.out


def test_the_article_s_figures_stand_beside_its_problem():
    assert table.ARTICLE_PROBLEM.name == "4096x4096x4096"


@pytest.mark.case("2.5")
def test_events_that_tell_no_time_give_no_figure(fake_gpu, capsys, monkeypatch):
    import cupy

    monkeypatch.setattr(cupy.cuda, "get_elapsed_time", lambda start, end: 0.0)
    assert command.main(["table", "--json", "--problem", "64x64x64"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "launches took 0 s by the GPU's events" in printed.err


def test_the_peak_counts_what_its_kernel_computes(fake_gpu):
    """By the simulator, which counts two of the kernel's iterations."""
    peak = ffma_peak.FfmaPeak()
    source = Path(ffma_peak.__file__).with_suffix(".cu")
    constants = {name: getattr(ffma_peak, name) for name in ("THREADS", "CHAINS", "STEPS")}
    start = np.random.default_rng(0).random(peak._start.size, np.float32)
    end = np.empty_like(start)
    addresses = (np.uintp(array.ctypes.data) for array in (start, end))
    arguments = np.float32(-1), np.float32(1), np.int32(2), *addresses
    with simulator.counted() as launches:
        simulator.launch(source, "ffma_peak", constants, peak._blocks, ffma_peak.THREADS, arguments)
    multiply_adds = total(launches[0].lines.values()).fmas
    assert peak.flops == 2 * multiply_adds * ffma_peak.ITERATIONS / 2
    assert np.array_equal(start, end)


def test_a_stale_peak_is_wrong(fake_gpu):
    peak = ffma_peak.FfmaPeak()
    peak.launch(0)
    peak.verify(1)
    peak.poison()
    with pytest.raises(timing.WrongResultError):
        peak.verify(1)


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda a, b, out: out.fill(0), id="zeros"),
        pytest.param(lambda a, b, out: out.fill(np.nan), id="NaN"),
        pytest.param(lambda a, b, out: None, id="nothing"),
    ],
)
def test_a_wrong_kernel_has_no_speed(fake_gpu, capsys, monkeypatch, write):
    replace_kernel(monkeypatch, "v2", write)
    status, printed = run(capsys, "--json")
    assert status == 1
    rows = {row["version"]: row for row in json.loads(printed.out)["rows"]}
    assert rows["v2"]["verdict"] == "wrong"
    assert re.match(r"wrong: 307\d of 3072 elements", rows["v2"]["detail"])
    assert rows["v2"]["gflops"] is rows["v3"]["gain"] is None
    assert all(rows[name]["gflops"] for name in SUBJECTS if name != "v2")


def test_a_kernel_that_stops_writing_when_timed_is_wrong(fake_gpu, capsys, monkeypatch):
    asked = []

    def reason_to_stop(*arguments):
        asked.append(arguments)
        return timing.reason_to_stop(*arguments)

    def lazy(a, b, out):
        if not asked:  # what comes before is verified apart
            np.matmul(a, b, out=out)

    monkeypatch.setattr(table, "reason_to_stop", reason_to_stop)
    replace_kernel(monkeypatch, "v3", lazy)
    status, printed = run(capsys, "--json")
    assert status == 1
    rows = {row["version"]: row for row in json.loads(printed.out)["rows"]}
    assert rows["v3"]["verdict"] == "wrong"
    assert rows["v3"]["gflops"] is None


@pytest.mark.case("2.5")
@pytest.mark.parametrize("kind", ["CUDA's", "the package's"])
def test_a_kernel_that_fails_ends_the_run(fake_gpu, capsys, monkeypatch, kind):
    kinds = {"CUDA's": fake_gpu.CudaError, "the package's": sgemm.KernelError}

    def fail(a, b, out):
        raise kinds[kind]("an illegal memory access was encountered")

    replace_kernel(monkeypatch, "v1", fail)
    status, printed = run(capsys)
    assert status == 1
    assert printed.err.strip().endswith("v1 failed: an illegal memory access was encountered")


def test_one_s_own_kernel_gets_a_row(fake_gpu, capsys):
    status, printed = run(capsys, "--json", "--source", str(ROOT / "kernels" / "template.cu"))
    assert status == 0
    row = json.loads(printed.out)["rows"][len(LADDER)]
    assert row["version"] == "template.cu"
    assert row["verdict"] == "right"
    assert row["gflops"] > 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["table", "--problem", "64x64"], "--problem: '64x64' is neither a shape MxNxK nor"),
        (["table", "--source", "absent.cu"], "absent.cu: cannot be read"),
        (["tables"], "argument COMMAND: invalid choice: 'tables'"),
    ],
)
def test_bad_arguments_exit_2_with_one_line(fake_gpu, capsys, arguments, reason):
    try:
        status = command.main(arguments)
    except SystemExit as stop:
        status = stop.code
    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    assert reason in printed.err
    assert printed.err.count("\n") == 1


def test_a_busy_gpu_is_not_measured(fake_gpu, capsys, monkeypatch):
    monkeypatch.setattr(sgemm, "matmul", pytest.fail, raising=False)
    monkeypatch.setattr(fake_gpu.Monitor, "processes", 1)
    status, printed = run(capsys)
    assert status == 2
    assert "another process computes on the GPU" in printed.err


def in_a_process(*arguments, **variables):
    """What the command prints in a process of its own, on the GPU that is there."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", "table", "--json", *arguments],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(gpu.find() is not None, reason="there is a GPU")
def test_without_a_gpu_nothing_is_measured():
    """Why there is none is said as the doctor says it."""
    result = in_a_process(PYTHONWARNINGS="error")
    assert result.returncode == 2
    assert result.stdout == ""
    why = doctor.why_no_gpu(doctor.examine())
    assert result.stderr == (
        f"python -m benchmarks: there is no GPU, and speed is measured on nothing else; {why}\n"
    )


@pytest.mark.case("2.1", "2.8", "2.10", "2.12")
@pytest.mark.gpu
@pytest.mark.alone
def test_the_ladder_on_this_gpu():
    result = in_a_process("--problem", "256x256x256")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    rows = document["rows"]
    assert [row["version"] for row in rows] == SUBJECTS
    assert all(0 < row["share_of_peak"] <= 1.001 for row in rows)
    for row in rows:
        for seconds, cycles, reading in zip(
            row["seconds"], row["cycles"], row["readings"], strict=True
        ):
            assert cycles / seconds / 1e6 == pytest.approx(reading["sm_mhz"], rel=0.1)
    empty = document["environment"]["empty_kernel_seconds"] * 1e6
    for row in rows[:-1]:
        assert row["warm_gflops"] > 0.98 * row["gflops"], "of a warm L2, the other of a cold one"
        if row["latency_us"] is None:  # it is not short
            assert row["seconds"][0] > 0.9 * table.LATENCY_BELOW_SECONDS
        else:
            assert 0 < empty < row["latency_us"]


@pytest.mark.case("2.5")
@pytest.mark.gpu
@pytest.mark.alone
def test_a_kernel_that_fails_on_this_gpu_has_no_figure():
    source = Path(__file__).parent / "planted_kernels" / "writes_nowhere.cu"
    result = in_a_process("--problem", SMALL, "--source", str(source))
    assert result.returncode == 1, result.stderr
    assert result.stdout == ""
    assert "writes_nowhere.cu failed: CUDA error 700, illegal address: " in result.stderr
