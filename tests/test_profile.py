"""``python -m benchmarks profile``: what it reads from Nsight Compute's output, and what it says
where there is nothing to read. Its figures come from a GPU; here a program stands in for ncu."""

import argparse
import json
import stat
import sys

import pytest

from benchmarks import environment, gpu, profile
from benchmarks.problems import Problem

pytest_plugins = ["fake_gpu"]

GPU = gpu.Gpu("Fake GPU", "0000:00:00.0", compute_capability=(9, 0), cuda="13.0")
DENIED = (
    "==PROF== Connected to process 17 (/usr/bin/python3.12)\n"
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
    "Performance Counters on the target device 0.\n"
    "==PROF== Disconnected from process 17\n"
)


def raw_page(*kernels, duration_unit="ns"):
    """The raw page, as ncu prints it between its own messages: each kernel its name, nanoseconds
    and figures."""
    names = [*profile.STALLS.values(), *profile.PIPES.values()]
    header = ["ID", "Process ID", "Kernel Name", "CC", profile.DURATION, *names]
    units = ["", "", "", "", duration_unit, *["inst"] * len(profile.STALLS)]
    units += ["%"] * len(profile.PIPES)
    lines = [header, units]
    for i, (name, duration, figures) in enumerate(kernels):
        cells = [figures.get(metric, "0") for metric in names]
        lines.append([str(i), "17", name, "9.0", duration, *cells])
    table = "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in lines)
    return (
        "==PROF== Connected to process 17 (/usr/bin/python3.12)\n"
        '==PROF== Profiling "sgemm" - 0: 0%....50%....100% - 8 passes\n' + table
    )


def longest_kernel(output):
    return profile.longest_kernel(profile.kernels(output))


def stalls(**ratios):
    return {profile.STALLS[reason]: str(ratio) for reason, ratio in ratios.items()}


V0 = stalls(long_scoreboard=20, selected=1, wait=2, lg_throttle=2)


def test_the_figures_are_those_of_the_longest_kernel():
    output = raw_page(("copy", "12,000", {}), ("sgemm", "270,123,456", V0))
    figures = longest_kernel(output)
    assert figures["Kernel Name"] == "sgemm"
    assert figures[profile.DURATION] == pytest.approx(0.270123456)
    assert profile.stall_shares(figures)["long_scoreboard"] == 0.8


def test_units_are_read_and_not_assumed():
    figures = longest_kernel(raw_page(("sgemm", "2.5", V0), duration_unit="ms"))
    assert figures[profile.DURATION] == pytest.approx(2.5e-3)


@pytest.mark.parametrize(
    ("unit", "seconds"), [("ns", 7e-9), ("usecond", 7e-6), ("msecond", 7e-3), ("s", 7.0)]
)
def test_every_release_names_units_in_its_way(unit, seconds):
    figures = longest_kernel(raw_page(("sgemm", "7", V0), duration_unit=unit))
    assert figures[profile.DURATION] == pytest.approx(seconds)


def test_messages_among_the_figures_are_none():
    page = raw_page(("copy_strided", "2,000", {}), ("sgemm", "1,000", V0))
    *before, last = page.splitlines()
    page = "\n".join([*before, "==WARNING== Backing up device memory in system memory.", last])
    assert [kernel["Kernel Name"] for kernel in profile.kernels(page)] == ["copy_strided", "sgemm"]


@pytest.mark.parametrize(("duration", "unit"), [("(!) n/a", "ns"), ("1", "fortnight")])
def test_without_a_duration_nothing_is_the_longest(duration, unit):
    with pytest.raises(profile.ProfilerError, match="no duration"):
        longest_kernel(raw_page(("sgemm", duration, V0), duration_unit=unit))


@pytest.mark.parametrize("cell", ["nan", "n/a", "(!) nan", "(!) n/a", ""])
def test_a_figure_that_the_gpu_lacks_is_none(cell):
    figures = longest_kernel(
        raw_page(("sgemm", "1", V0 | {profile.STALLS["membar"]: cell, profile.PIPES["l1"]: cell}))
    )
    row = profile.row("v0", figures)
    assert row["pipes"]["l1"] is None
    assert "membar" not in row["stalls"]
    json.dumps(row, allow_nan=False)


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        (V0, "long_scoreboard"),
        (stalls(selected=1, short_scoreboard=9, barrier=4, wait=2), "short_scoreboard"),
        (stalls(selected=1, barrier=5, short_scoreboard=2, wait=2), "barrier"),
        # No reason takes a quarter of the time.
        (stalls(selected=4, wait=2, barrier=2, short_scoreboard=1, dispatch_stall=1), "even"),
        # Two take the same.
        (stalls(selected=1, barrier=4, short_scoreboard=4), "even"),
        # A warp that could issue does not wait.
        (stalls(selected=4, not_selected=9, wait=1), "even"),
    ],
)
def test_the_bottleneck_is_the_reason_that_stands_out(ratios, expected):
    figures = longest_kernel(raw_page(("sgemm", "1", ratios)))
    assert profile.bottleneck(profile.stall_shares(figures)) == expected


def test_every_cause_belongs_to_a_reason():
    assert set(profile.CAUSES) <= set(profile.STALLS)


def test_shares_are_of_all_the_time_and_sorted():
    shares = profile.stall_shares(longest_kernel(raw_page(("sgemm", "1", V0))))
    assert sum(shares.values()) == pytest.approx(1)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)


def test_counters_that_are_not_permitted_are_named():
    with pytest.raises(profile.ProfilerError, match="not permitted") as caught:
        longest_kernel(DENIED)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("", "no kernel was profiled"),
        ("==PROF== Connected\n==WARNING== No kernels were profiled.\n", "no kernel was profiled"),
        ("==ERROR== Failed to find metric x__y.sum\n", "Failed to find metric x__y.sum"),
    ],
)
def test_output_without_figures_is_an_error(output, reason):
    with pytest.raises(profile.ProfilerError, match=reason):
        longest_kernel(output)


def options(*arguments):
    parser = argparse.ArgumentParser()
    profile.add_parser(parser.add_subparsers())
    return parser.parse_args(["profile", *arguments])


class Monitor:
    def __init__(self, device):
        pass

    def require_alone(self, own_processes):
        assert own_processes == 0

    def describe(self):
        return {"driver": "580.0"}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a GPU, and a function that installs what stands for its ncu."""
    monkeypatch.setattr(gpu, "find", lambda: GPU)
    monkeypatch.setattr(gpu, "Monitor", Monitor)
    monkeypatch.setenv("PATH", str(tmp_path))

    def install(output, stderr=""):
        ncu = tmp_path / "ncu"
        (tmp_path / "output").write_text(output)
        ncu.write_text(
            f"#!{sys.executable}\n"
            "import json, shutil, sys\n"
            "if '--version' in sys.argv:\n"
            "    sys.exit(print('Version 2025.3.1.0 (build 1) (public-release)'))\n"
            f"json.dump(sys.argv, open({str(tmp_path / 'arguments')!r}, 'w'))\n"
            "log = next(a.partition('=')[2] for a in sys.argv if a.startswith('--log-file='))\n"
            f"shutil.copy({str(tmp_path / 'output')!r}, log)\n"
            f"sys.exit({stderr!r})\n"
        )
        ncu.chmod(ncu.stat().st_mode | stat.S_IXUSR)

    return install


def test_one_document_with_a_row_per_version(machine, capsys, tmp_path):
    machine(raw_page(("sgemm", "270,123,456", V0 | {profile.PIPES["fma"]: "1.5"})))
    assert profile.run(options("--version", "v0", "--version", "cublas", "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "benchmarks/profile/1"
    assert document["command"] == "profile"
    assert document["environment"]["gpu"] == "Fake GPU"
    assert document["environment"]["checkout"] == environment.commit_of_checkout()
    assert document["environment"]["nsight_compute"] == "2025.3.1.0"
    assert [row["version"] for row in document["rows"]] == ["v0", "cublas"]
    row = document["rows"][0]
    assert row["bottleneck"] == "long scoreboard"
    assert row["waits_for"] == "global memory"
    assert row["stalls"]["long_scoreboard"] == 0.8
    assert row["pipes"]["fma"] == 0.015
    arguments = json.loads((tmp_path / "arguments").read_text())
    assert "--clock-control=none" in arguments
    (metrics,) = [argument for argument in arguments if argument.startswith("--metrics=")]
    assert profile.STALLS["long_scoreboard"] in metrics
    assert json.loads(arguments[-1]) == [["cublas"], ["done"]]


def test_without_the_commit_git_s_reason_is_told(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert environment.commit_of_checkout() is None
    assert capsys.readouterr().err == ""  # outside git there is none
    (tmp_path / ".git").write_text("gitdir: gone")
    assert environment.commit_of_checkout() is None
    told = capsys.readouterr().err
    assert told.startswith("what is measured goes without its commit: fatal: ")
    assert told.count("\n") == 1


def test_the_table_names_the_bottleneck(machine, capsys):
    machine(raw_page(("sgemm", "270,123,456", V0)))
    assert profile.run(options("--version", "v0")) == 0
    output = capsys.readouterr().out
    assert "long scoreboard 80%" in output
    assert "Nsight Compute 2025.3.1.0" in output
    assert "…" not in output


def test_denied_counters_name_the_version_and_the_cause(machine):
    machine(DENIED)
    with pytest.raises(profile.ProfilerError, match=r"^v0: .*ERR_NVGPUCTRPERM"):
        profile.run(options("--version", "v0"))


def test_a_program_that_fails_is_quoted(machine):
    machine("", stderr="MemoryError: out of memory")
    with pytest.raises(profile.ProfilerError, match="MemoryError: out of memory"):
        profile.run(options("--version", "v0"))


def test_without_nsight_compute(machine):
    with pytest.raises(profile.ProfilerError, match="no ncu on the PATH"):
        profile.run(options())


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "find", lambda: None)
    with pytest.raises(gpu.NoGpuError):
        profile.run(options())


def test_an_unknown_version_is_refused(capsys):
    with pytest.raises(SystemExit) as exit:
        options("--version", "v99")
    assert exit.value.code == 2


@pytest.mark.parametrize("subject", profile.SUBJECTS)
def test_one_warm_product_is_profiled(fake_gpu, monkeypatch, subject):
    steps = []
    runtime = fake_gpu.cupy.cuda.runtime
    runtime.deviceSynchronize = lambda: steps.append("wait")
    runtime.profilerStart = lambda: steps.append("start")
    runtime.profilerStop = lambda: steps.append("stop")
    right = profile._multiply

    def multiply(subject, stream):
        if subject == "cublas":
            return lambda a, b, out: steps.append("product")
        product = right(subject, stream)
        return lambda a, b, out: steps.append("product") or product(a, b, out)

    monkeypatch.setattr(profile, "_multiply", multiply)
    monkeypatch.setattr(profile, "PROBLEM", Problem(32, 32, 32))
    emitted = {}
    profile.answer([subject], ["done"], emitted.__setitem__)
    assert steps == ["product", "wait", "start", "product", "wait", "stop"]
    assert emitted == {"done": {}}
