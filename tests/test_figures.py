"""What figures are worth: measurements that are none, low clocks, small products, warm caches."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from itertools import repeat
from math import inf, nan
from pathlib import Path
from statistics import median, pstdev
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from benchmarks import __main__ as command
from benchmarks import gpu, products, timing
from benchmarks.problems import parse
from benchmarks.series import metric
from sgemm import throttling

pytest_plugins = ["fake_gpu"]


@pytest.mark.case("2.5", "2.11")
@pytest.mark.parametrize("value", [[], [nan], [1.0, nan], [inf], nan, -inf])
def test_what_is_no_figure_fails_its_benchmark(value):
    """asv would publish NaN as n/a, and so hide it."""
    with pytest.raises(RuntimeError, match=r"^gflops is no figure: "):
        metric({"gflops": value}, "gflops")
    assert metric({"gflops": value, "seconds": [0.5]}, "seconds") == [0.5]


@pytest.fixture
def monitor(monkeypatch):
    """The monitor of a GPU of which NVML tells so much; None where it does not tell."""

    def monitor(mhz=1980, most=1980, reasons=0, processes=()):
        class NotSupportedError(Exception):
            pass

        def answer(value):
            if value is None:
                raise NotSupportedError
            return value

        nvml = MagicMock(NVMLError_NotSupported=NotSupportedError)
        clocks = {nvml.NVML_CLOCK_SM: mhz, nvml.NVML_CLOCK_MEM: 3201}
        highest = {nvml.NVML_CLOCK_SM: most, nvml.NVML_CLOCK_MEM: 3202}
        nvml.nvmlDeviceGetClockInfo = lambda device, kind: answer(clocks[kind])
        nvml.nvmlDeviceGetMaxClockInfo = lambda device, kind: answer(highest[kind])
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda device: answer(reasons)
        nvml.nvmlDeviceGetPowerUsage = lambda device: 350_500
        nvml.nvmlDeviceGetTemperature = lambda device, sensor: 61
        nvml.nvmlDeviceGetPowerManagementLimit = lambda device: 700_000
        nvml.nvmlDeviceGetUUID = lambda device: "GPU-1"
        nvml.nvmlSystemGetDriverVersion = lambda: "580.1"
        running = iter(processes)
        nvml.nvmlDeviceGetComputeRunningProcesses = lambda device: answer(next(running))
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return gpu.Monitor(gpu.Gpu("", "", (9, 0), "13.0"))

    return monitor


@pytest.fixture
def read(monitor):
    """A reading of such a GPU."""
    return lambda *told, **others: monitor(*told, **others).read()


@pytest.mark.case("2.10", "5.10")
def test_the_state_of_a_gpu_is_recorded_whole(monitor):
    assert monitor(reasons=2).read() == gpu.Reading(1980, 3201, 350.5, 61, ("clock setting",))
    assert monitor().describe() == {
        "driver": "580.1",
        "gpu_id": sha256(b"GPU-1").hexdigest()[:12],
        "max_sm_mhz": 1980,
        "max_memory_mhz": 3202,
        "power_limit_watts": 700.0,
    }


ONE, TWO = [SimpleNamespace(pid=1)], [SimpleNamespace(pid=1), SimpleNamespace(pid=7)]


@pytest.mark.case("5.8")
@pytest.mark.parametrize("processes", [[ONE], [[]], [None], [TWO, TWO, ONE]])
def test_a_gpu_without_others_is_measured(monitor, monkeypatch, processes):
    """Also one that another process is just leaving, and one that does not tell."""
    monkeypatch.setattr(gpu.time, "sleep", lambda seconds: None)
    monitor(processes=processes).require_alone(own_processes=1)


@pytest.mark.case("5.8")
def test_another_process_on_the_gpu_is_named(monitor, monkeypatch):
    monkeypatch.setattr(gpu.time, "sleep", lambda seconds: None)
    watching = monitor(processes=repeat(TWO))
    with pytest.raises(gpu.GpuBusyError, match=r"another process .*process ids: 1, 7\)"):
        watching.require_alone(own_processes=1, patience=0.01)


@pytest.mark.case("2.10", "5.9")
@pytest.mark.parametrize(
    ("bits", "throttled"),
    [
        (0, ()),
        (1, ()),  # idle
        (2, ("clock setting",)),
        (0x1FF, tuple(throttling.REASONS.values())),
        (None, None),
    ],
)
def test_what_holds_the_clocks_down_is_recorded(read, bits, throttled):
    """Also clocks that somebody has locked; in the doctor's words."""
    assert read(reasons=bits).throttled == throttled


@pytest.mark.case("2.10")
@pytest.mark.parametrize(("mhz", "low"), [(1980, False), (1584, False), (1583, True), (345, True)])
def test_low_clocks_are_marked(read, mhz, low):
    assert read(mhz).low_clock is low


def test_clocks_that_are_not_reported_are_not_low(read):
    assert not read(None).low_clock
    assert not read(900, most=None).low_clock


@pytest.mark.case("2.10", "2.11")
def test_samples_at_low_clocks_count_and_are_marked(fake_gpu, table, monkeypatch):
    """A run of nothing else has as many samples as any other, none of which is dropped."""
    low = gpu.Reading(900, 3201, 350.5, 90, ("hardware thermal",), low_clock=True)
    monkeypatch.setattr(fake_gpu.Monitor, "read", lambda monitor: low)
    rows = json.loads(table("64x48x33", "--json"))["rows"]
    for row in rows:
        assert len(row["seconds"]) == len(row["readings"]) >= timing.MIN_SAMPLES
        assert all(reading["low_clock"] for reading in row["readings"])
        assert row["gflops"] > 0
    printed = table("64x48x33")
    for row in rows:
        assert f"{row['version']}: " in printed
    assert printed.count(" samples at low clocks") == len(rows)


@pytest.fixture
def table(capsys, monkeypatch):
    """What ``python -m benchmarks table`` prints for a problem."""

    def table(problem, *arguments):
        assert command.main(["table", "--problem", problem, *arguments]) == 0
        return capsys.readouterr().out

    return table


@pytest.mark.case("2.8", "2.12")
def test_small_products_have_a_latency_beside_that_of_an_empty_kernel(fake_gpu, table, monkeypatch):
    """And two figures, where the operands of one fit the L2 cache: it is cold, or warm."""
    monkeypatch.setattr("benchmarks.table.LATENCY_BELOW_SECONDS", inf)
    document = json.loads(table("64x48x33", "--json"))
    *products, peak = document["rows"]
    assert 0 < document["environment"]["empty_kernel_seconds"] < inf
    for row in products:
        assert row["latency_us"] == pytest.approx(2 * 64 * 48 * 33 / row["gflops"] / 1e3)
        assert row["warm_gflops"] > 0
        assert row["warm_gflops"] != row["gflops"]
    assert peak["latency_us"] is peak["warm_gflops"] is None
    printed = table("64x48x33")
    assert "latency, µs" in printed
    assert "in a warm L2" in printed
    assert "an empty kernel takes " in printed


@pytest.mark.case("2.8")
def test_long_products_have_neither(fake_gpu, table, monkeypatch):
    monkeypatch.setattr("benchmarks.table.LATENCY_BELOW_SECONDS", 0)
    problem = "128x96x33"  # whose operands are larger than the cache
    assert parse(problem).operand_bytes > products.l2_bytes()
    rows = json.loads(table(problem, "--json"))["rows"]
    assert {(row["latency_us"], row["warm_gflops"]) for row in rows} == {(None, None)}
    printed = table(problem)
    assert "latency" not in printed
    assert "warm" not in printed


@pytest.mark.case("2.8")
def test_a_warm_cache_holds_one_set_of_operands(fake_gpu):
    problem = parse("16x16x16")
    values = products.random_values(products.Operands.floats(problem))
    assert products.Operands(problem, "row", values, warm=True).sets == 1
    assert products.Operands(problem, "row", values).sets > 1


# --- on a GPU, which the instrument must have to itself ---


def on_the_gpu(**environment):
    """What ``timing_target.py`` measures in a process of its own."""
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("timing_target.py"))],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    """Of a process that finds nothing compiled, and of one that finds everything."""
    folders = {
        name: str(tmp_path_factory.mktemp(name)) for name in ("SGEMM_CACHE_DIR", "CUPY_CACHE_DIR")
    }
    return {"cold": on_the_gpu(**folders), "warm": on_the_gpu(**folders)}


@pytest.mark.gpu
@pytest.mark.alone
class TestOnTheGpu:
    @pytest.mark.case("2.1")
    def test_no_product_is_faster_than_the_peak_and_twice_the_depth_takes_twice_the_time(
        self, figures
    ):
        warm = figures["warm"]
        half, whole = (min(warm[name]["seconds"]) for name in ("half the depth", "whole depth"))
        assert 1.7 < whole / half < 2.3
        assert 2 * 4096**3 / whole / 1e9 < 1.001 * warm["peak GFLOPS"]

    @pytest.mark.case("2.2")
    def test_the_instrument_agrees_with_events_around_launches(self, figures):
        warm = figures["warm"]
        assert warm["by events"] > 0.001
        assert median(warm["whole depth"]["seconds"]) == pytest.approx(warm["by events"], rel=0.05)

    @pytest.mark.case("2.3")
    def test_the_number_of_launches_changes_no_figure(self, figures):
        few, many = figures["warm"]["few"], figures["warm"]["many"]
        assert few["launches"] <= 60
        assert many["launches"] > 100 * few["launches"]
        assert min(many["seconds"]) == pytest.approx(min(few["seconds"]), rel=0.2)

    @pytest.mark.case("2.4", "2.12")
    def test_the_shortest_products_have_a_figure(self, figures):
        tiny, overhead = figures["warm"]["tiny"], figures["warm"]["empty kernel"]
        assert tiny["batch"] >= 0.001
        assert all(0 < seconds < 1e-4 for seconds in tiny["seconds"])
        assert max(tiny["seconds"]) < 1.5 * min(tiny["seconds"])
        assert 0 < overhead < min(tiny["seconds"])

    @pytest.mark.case("2.6")
    def test_nothing_is_compiled_within_a_sample(self, figures):
        cold, warm = (median(figures[cache]["first"]["seconds"]) for cache in ("cold", "warm"))
        assert cold == pytest.approx(warm, rel=0.03)

    @pytest.mark.case("2.7")
    def test_one_launch_a_batch_and_ten_have_one_figure(self, figures):
        warm = figures["warm"]
        one, ten = warm["one launch a batch"], warm["ten launches a batch"]
        assert (one["launches"], ten["launches"] >= 10) == (1, True)
        assert min(one["seconds"]) == pytest.approx(min(ten["seconds"]), rel=0.03)

    @pytest.mark.case("2.8")
    def test_operands_in_the_cache_are_faster_than_others(self, figures):
        cold, warm = (min(figures["warm"][cache]["seconds"]) for cache in ("cold L2", "warm L2"))
        assert 0 < warm < cold

    @pytest.mark.case("2.9")
    def test_inputs_are_random_and_the_same_in_every_process(self, figures):
        values = figures["warm"]["inputs"]
        assert values == figures["cold"]["inputs"]
        assert pstdev(values) == pytest.approx(3**-0.5, rel=0.01)
