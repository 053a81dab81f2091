"""``python -m benchmarks counters``; what Nsight Compute says is made up here."""

import json
import stat
import sys

import pytest
from fake_gpu import GPU

from benchmarks import __main__ as command
from benchmarks import counters, profile
from benchmarks.problems import Problem
from sgemm import LADDER, sass
from sgemm.trace import trace

pytest_plugins = ["fake_gpu"]

SMALL = "64x96x40"
METRICS = [name for names in counters.COUNTERS.values() for name in names] + list(counters.ALSO)

# Plays ncu: it counts what the file beside it says, for each product that it is asked to profile.
NCU = """
import csv, json, sys
from pathlib import Path
here = Path(__file__).parent
told = json.loads((here / "told.json").read_text())
if "--query-metrics" in sys.argv:
    print("Device Some GPU (GX100)")
    print("-" * 60)
    print("Metric Name          Metric Type     Metric Description")
    for name in told["known"]:
        print(f"{name:60} Counter         inst            # of something")
    sys.exit()
(here / "arguments.json").write_text(json.dumps(sys.argv))
option = dict(a[2:].split("=", 1) for a in sys.argv if a.startswith("--") and "=" in a)
metrics = option["metrics"].split(",")
assert option["kernel-name"] == "sgemm"
_, keys = json.loads(sys.argv[-1])
with open(option["log-file"], "w") as log:
    print("==PROF== Connected to process 17 (/usr/bin/python3.12)", file=log)
    for number, key in enumerate(keys[:told["profiled"]]):
        print(f'==PROF== Profiling "sgemm" - {number}: 0%....50%....100% - 7 passes', file=log)
    print("==PROF== Disconnected from process 17", file=log)
    rows = csv.writer(log, quoting=csv.QUOTE_ALL)
    first = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"]
    first += ["Block Size", "Grid Size", "Device", "CC"]
    if told["profiled"]:
        rows.writerow(first + metrics)
        units = ["ns" if "duration" in m else "inst" for m in metrics]
        rows.writerow([""] * len(first) + units)
    for number, key in enumerate(keys[:told["profiled"]]):
        row = [number, 17, "python3.12", "127.0.0.1", "sgemm", 1, 13, "(256, 1, 1)"]
        row += ["(64, 1, 1)", 0, "9.0"]
        figures = {"gpu__time_duration.sum": 4576} | told["figures"][key.split()[0]]
        row += [f"{figures[m]:,}" if m in figures else "(!) n/a" for m in metrics]
        rows.writerow(row)
sys.exit(told["stderr"])
"""


def expected(name, sms=1):
    """The figures of a GPU that counts as the simulator does."""
    m, n, k = map(int, SMALL.split("x"))
    one = trace(LADDER[name], m, n, k, sms)
    copies = [line for line in one.lines.values() if line.copies]
    stored = [line.shared_stores for line in copies]
    counts = {"multiply_adds": one.total.fmas}
    for kind in ("global_load", "global_store", "shared_load", "shared_store"):
        access = getattr(one.total, f"{kind}s")
        units = "sectors" if kind.startswith("global") else "wavefronts"
        counts |= {f"{kind}_requests": access.requests, f"{kind}_{units}": access.units}
    counts["copy_requests"] = sum(access.requests for access in stored)
    counts["copy_wavefronts"] = sum(access.units for access in stored)
    counts["shared_store_requests"] -= counts["copy_requests"]
    counts["shared_store_wavefronts"] -= counts["copy_wavefronts"]
    return {counters.COUNTERS[counter][0]: count for counter, count in counts.items()}


@pytest.fixture
def nsight(fake_gpu, monkeypatch, tmp_path):
    """Nsight Compute, and what it is told; it counts what the simulator does."""
    ncu = tmp_path / "ncu"
    ncu.write_text(f"#!{sys.executable}\n{NCU}")
    ncu.chmod(ncu.stat().st_mode | stat.S_IXUSR)
    told = {
        "known": [metric.partition(".")[0] for metric in METRICS],
        "figures": {name: expected(name) for name in ("v0", "v1", "v3", "v4", "v7")},
        "profiled": 99,
        "stderr": "",
    }
    monkeypatch.setattr(profile, "find", lambda: (GPU, str(ncu)))
    monkeypatch.setattr(
        profile,
        "describe",
        lambda device, ncu: {"gpu": device.name, "nsight_compute": "1", "driver": "1"},
    )
    return told, tmp_path


@pytest.fixture
def run(nsight, capsys):
    """Counts products of versions; returns the exit status and the rows."""

    def count(*versions):
        told, folder = nsight
        (folder / "told.json").write_text(json.dumps(told))
        arguments = [f"--version={version}" for version in versions]
        status = command.main(["counters", "--problem", SMALL, "--json", *arguments])
        return status, json.loads(capsys.readouterr().out)["rows"]

    return count


def verdicts(rows):
    return {row["counter"]: row["verdict"] for row in rows if row["counter"]}


def test_every_version_and_counter_has_a_row(run, nsight):
    status, rows = run("v1", "v7")
    assert status == 0
    assert [row["version"] for row in rows] == [
        name for name in ("v1", "v7") for _ in (*counters.COUNTERS, *counters.ALSO)
    ]
    assert set(verdicts(rows).values()) == {counters.EQUAL}
    assert {row["ratio"] for row in rows if row["simulator"]} == {1.0}
    arguments = json.loads((nsight[1] / "arguments.json").read_text())
    assert "--clock-control=none" in arguments
    assert json.loads(arguments[-1]) == [[], [f"v1 {SMALL}", f"v7 {SMALL}"]]  # one process for all


def test_a_difference_without_a_reason_is_unexplained(run, nsight):
    nsight[0]["figures"]["v1"] |= {counters.COUNTERS["multiply_adds"][0]: 1_234_567}
    status, rows = run("v1")
    assert status == 1
    (row,) = (row for row in rows if row["counter"] == "multiply_adds")
    assert row["gpu"] == 1_234_567
    assert row["verdict"] == counters.UNEXPLAINED


def test_a_metric_that_the_gpu_lacks_is_named_and_the_others_are_compared(run, nsight):
    told, folder = nsight
    told["known"].remove("smsp__inst_executed_op_shared_ld")
    status, rows = run("v3")
    assert status == 0
    assert "smsp__inst_executed_op_shared_ld.sum" not in (folder / "arguments.json").read_text()
    found = verdicts(rows)
    assert found.pop("shared_load_requests") == (
        "the GPU has no smsp__inst_executed_op_shared_ld.sum"
    )
    assert set(found.values()) == {counters.EQUAL}


def test_another_metric_stands_in(run, nsight):
    best, other = counters.COUNTERS["shared_load_wavefronts"]
    figures = nsight[0]["figures"]["v3"]
    figures[other] = figures.pop(best)
    _, rows = run("v3")
    (row,) = (row for row in rows if row["counter"] == "shared_load_wavefronts")
    assert (row["metric"], row["verdict"]) == (other, counters.EQUAL)


def test_what_is_not_listed_is_asked_for(run, nsight):
    """Where Nsight Compute lists nothing, for instance because it takes no --query-metrics."""
    nsight[0]["known"] = []
    status, rows = run("v1")
    assert status == 0
    assert set(verdicts(rows).values()) == {counters.EQUAL}


def test_a_process_that_dies_leaves_the_products_before_it(run, nsight):
    nsight[0]["profiled"] = 1
    _, rows = run("v1", "v3")
    found = [verdicts(row for row in rows if row["version"] == name) for name in ("v1", "v3")]
    assert set(found[0].values()) == {counters.EQUAL}
    assert all(verdict.startswith("the GPU has no ") for verdict in found[1].values())


def test_no_product_at_all_is_an_error(nsight, capsys):
    told, folder = nsight
    told |= {"profiled": 0, "stderr": "ImportError: no module named cupy"}
    (folder / "told.json").write_text(json.dumps(told))
    assert command.main(["counters", "--problem", SMALL, "--version=v1"]) == 2
    error = capsys.readouterr().err
    assert "no kernel was profiled" in error
    assert "no module named cupy" in error


def compare(name, counter, count, machine=None, problem=SMALL):
    """The verdict on a GPU that counts as the simulator does, but for one counter."""
    m, n, k = map(int, problem.split("x"))
    problem = Problem(m, n, k)
    simulated = counters.of_simulator(name, problem)
    figures = {names[0]: simulated.counts[c] for c, names in counters.COUNTERS.items()}
    figures[counters.COUNTERS[counter][0]] = count(simulated)
    rows = counters.compare(name, problem, simulated, figures, machine or simulated.widths)
    return verdicts(rows)[counter]


@pytest.mark.usefixtures("fake_gpu")
def test_merged_and_split_accesses_are_told_by_their_widths():
    verdict = compare(
        "v3",
        "shared_store_requests",
        lambda s: s.counts["shared_store_requests"] / 4,
        {"shared_store": {128}},
    )
    assert verdict == "accesses of 32 bits in the source are of 128 bits in machine code"
    verdict = compare(
        "v3",
        "global_store_requests",
        lambda s: 4 * s.counts["global_store_requests"],
        {"global_store": {32}},
    )
    assert verdict == "accesses of 128 bits in the source are of 32 bits in machine code"


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.parametrize(
    ("version", "problem", "reasons"),
    [
        ("v6", "128x256x32", []),
        ("v9", "32x64x64", []),
        ("v6", "128x256x30", [counters.ZEROS]),
        ("v8", "64x128x32", [counters.BUFFERS.format(96)]),
        ("v8", "64x128x30", [counters.ZEROS, counters.BUFFERS.format(96)]),
    ],
)
def test_more_wavefronts_of_copies_have_two_reasons(version, problem, reasons):
    """Where neither holds, and beyond 15 %, they are unexplained."""
    for factor, verdict in ((1.12, "; ".join(reasons)), (1.2, ""), (0.8, "")):
        found = compare(
            version,
            "copy_wavefronts",
            lambda s, factor=factor: s.counts["copy_wavefronts"] * factor,
            problem=problem,
        )
        assert found == (verdict or counters.UNEXPLAINED)


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.parametrize(
    ("counter", "factor", "verdict"),
    [
        ("shared_load_wavefronts", 1.09, counters.NEAR),
        ("shared_load_wavefronts", 0.91, counters.NEAR),
        ("shared_load_wavefronts", 1.11, counters.UNEXPLAINED),
        ("copy_wavefronts", 1.05, counters.NEAR),
        ("copy_requests", 1.05, counters.UNEXPLAINED),
        ("global_store_sectors", 1.05, counters.UNEXPLAINED),
        ("global_load_requests", 1.05, counters.UNEXPLAINED),
    ],
)
def test_what_is_exact_and_what_may_be_apart(counter, factor, verdict):
    assert compare("v4", counter, lambda s: s.counts[counter] * factor) == verdict


@pytest.mark.skipif(sass.find_disassembler() is None, reason="needs nvdisasm")
def test_widths_are_read_from_machine_code():
    """v3 keeps the tiles' float4 loads, and its stores of four floats to shared memory are one."""
    problem = Problem(256, 256, 256)
    found = counters.machine_code("v3", problem, "sm_90")
    assert found["global_load"] == found["shared_load"] == found["shared_store"] == {128}
    assert found["copy"] == set()
    assert counters.machine_code("v4", problem, "sm_90")["copy"] == {128}
    by_floats = counters.machine_code("v4", Problem(64, 63, 63), "sm_90")
    assert by_floats["copy"] == {32}


def test_every_product_is_profiled(fake_gpu, monkeypatch):
    asked, emitted = [], {}
    monkeypatch.setattr(profile, "profiled_product", lambda *product: asked.append(product))
    keys = [f"v1 {SMALL}", "v3 4096x4096x4096 A+1"]
    counters.answer([], keys, emitted.__setitem__)
    assert asked == [("v1", Problem(64, 96, 40)), ("v3", Problem(4096, 4096, 4096, a_offset=1))]
    assert list(emitted) == keys


def test_the_simulator_deals_out_to_as_many_sms():
    """A block more leaves its sums in memory, and one reads them."""
    stores = [
        trace(LADDER["v7"], 64, 96, 4096, sms).total.global_stores.requests for sms in (1, 2, 3)
    ]
    assert stores[0] < stores[1] < stores[2]


def test_people_get_a_table(nsight, capsys):
    told, folder = nsight
    (folder / "told.json").write_text(json.dumps(told))
    assert command.main(["counters", "--problem", SMALL, "--version=v3"]) == 0
    output = capsys.readouterr().out
    assert "shared load wavefronts" in output
    assert "equal" in output
    assert "sm__sass" not in output
    assert "…" not in output
