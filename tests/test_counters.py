"""``python -m benchmarks counters``; what Nsight Compute says is made up here."""

import json

import pytest
from fake_gpu import GPU

from benchmarks import __main__ as command
from benchmarks import counters, profile
from sgemm import LADDER
from sgemm.trace import trace

pytest_plugins = ["fake_gpu"]

SMALL = "64x96x40"


@pytest.fixture
def nsight(fake_gpu, monkeypatch):
    """Nsight Compute, which counts what it is told: metric to count."""
    counts = {}
    asked = []

    def measure(ncu, subject, problem, metrics):
        asked.append((subject, problem.name, *metrics))
        return {metric: counts.get(metric, 1.0) for metric in metrics}

    everything = {
        metric.rsplit(".", 1)[0] for metrics in counters.COUNTERS.values() for metric in metrics
    }
    monkeypatch.setattr(profile, "find", lambda: (GPU, "ncu"))
    monkeypatch.setattr(
        profile,
        "describe",
        lambda device, ncu: {"gpu": device.name, "nsight_compute": "1", "driver": "1"},
    )
    monkeypatch.setattr(profile, "measure", measure)
    monkeypatch.setattr(counters, "known_metrics", lambda ncu: everything)
    return counts, asked, everything


def run(capsys, *arguments):
    assert command.main(["counters", "--problem", SMALL, "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)["rows"]


def test_every_version_and_counter_has_a_row(nsight, capsys):
    counts, _, _ = nsight
    counts["smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"] = 2 * 64 * 96 * 40
    rows = run(capsys, "--version=v1", "--version=v7")
    assert {row["version"] for row in rows} == {"v1", "v7"}
    assert len(rows) == 2 * len(counters.COUNTERS)
    for row in rows:
        if row["counter"] == "multiply_adds":
            assert row["simulator"] >= 64 * 96 * 40
            assert row["ratio"] == pytest.approx(2 * 64 * 96 * 40 / row["simulator"])


def test_loads_and_copies_count_together(nsight, capsys):
    """A GPU counts cp.async apart; the simulator does not."""
    (row,) = (r for r in run(capsys, "--version=v1") if r["counter"] == "global_load_requests")
    assert row["gpu"] == 3


def test_a_metric_that_the_gpu_lacks_is_not_asked_for(nsight, capsys):
    _, asked, everything = nsight
    everything.discard("smsp__inst_executed_op_shared_ld")
    rows = run(capsys, "--version=v1")
    assert not any("smsp__inst_executed_op_shared_ld.sum" in metrics for metrics in asked)
    (row,) = (r for r in rows if r["counter"] == "shared_load_requests")
    assert row["gpu"] is None
    assert row["ratio"] is None


def test_the_simulator_deals_out_to_as_many_sms():
    """A block more leaves its sums in memory, and one reads them."""
    stores = [
        trace(LADDER["v7"], 64, 96, 4096, sms).total.global_stores.requests for sms in (1, 2, 3)
    ]
    assert stores[0] < stores[1] < stores[2]


def test_people_get_a_table(nsight, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert command.main(["counters", "--problem", SMALL, "--version=v2"]) == 0
    assert "shared load wavefronts" in capsys.readouterr().out
