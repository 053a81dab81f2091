"""``python -m sgemm explain``: it says what ``matmul`` does."""

import json
import logging
import re
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from fake_cupy import Device, fake

import sgemm
from sgemm import LADDER, check, doctor, explanation
from sgemm.__main__ import main
from sgemm.choices import choose
from sgemm.ladder import fastest

__all__ = ["fake"]  # the fixture

SIZES = (1, 64, 1000, 4096, 16384)


@pytest.fixture
def explain(monkeypatch, capsys):
    """Run the command on a machine without a GPU: status, standard output and error."""
    monkeypatch.setattr(check, "usable_cupy", lambda: None)
    examine = doctor.examine
    monkeypatch.setattr(doctor, "examine", lambda: examine(doctor.Probes(driver=lambda: None)))

    def explain(*arguments):
        try:
            status = main(["explain", *arguments])
        except SystemExit as exit:  # argparse's
            status = exit.code
        output = capsys.readouterr()
        return status, output.out, output.err

    return explain


def chosen(estimates):
    (one,) = (estimate for estimate in estimates if estimate["chosen"])
    return one


@pytest.mark.parametrize("sms", [1, 46, 132])
def test_the_version_that_is_taken_has_the_least_estimate(sms):
    for m, n, k in product(SIZES, repeat=3):
        estimates = explanation.explain(tuple(LADDER), m, n, k, "", sms)
        assert min(estimate.time for estimate in estimates) == 1
        (taken,) = (estimate for estimate in estimates if estimate.chosen)
        assert taken.time == 1
        assert taken.version == fastest(tuple(LADDER), m, n, k, sms)


def test_tiles_that_were_measured_are_taken(monkeypatch):
    """Whatever the estimates are."""
    tiled = LADDER["v5"].reshaped((128, 128, 8), (8, 8), 1, 3, 1)
    monkeypatch.setattr(explanation, "choose", lambda *arguments: tiled)
    *others, taken = explanation.explain(tuple(LADDER), 512, 512, 512, "a GPU", 132)
    assert (taken.chosen, taken.version, taken.tile) == (True, "v5", (128, 128, 8))
    assert taken.tiles == 16
    assert {"v5": (128, 256, 8)}.items() <= {one.version: one.tile for one in others}.items()
    assert not any(one.chosen for one in others)


def test_of_a_version_whose_pace_is_not_known_no_time_is_estimated(monkeypatch, capsys):
    tiled = replace(LADDER["v9"], peak_share=0.0)
    monkeypatch.setattr(explanation, "choose", lambda *arguments: tiled)
    estimates = explanation.explain(tuple(LADDER), 512, 512, 512, "a GPU", 132)
    assert (estimates[-1].chosen, estimates[-1].version, estimates[-1].time) == (True, "v9", None)
    assert min(one.time for one in estimates[:-1]) == 1
    explanation.print_table(estimates)
    assert "v9" in capsys.readouterr().out


@pytest.mark.parametrize("shape", [(300, 200, 100), (64, 512, 256), (130, 70, 257)])
def test_it_says_what_matmul_does(fake, explain, monkeypatch, caplog, shape):
    """On the GPU that is here."""
    m, n, k = shape
    a, b = fake.ones((m, k), np.float32), fake.ones((k, n), np.float32)
    with caplog.at_level(logging.DEBUG, "sgemm"):
        sgemm.matmul(a, b)
    log = "\n".join(record.getMessage() for record in caplog.records)
    monkeypatch.setattr(check, "usable_cupy", lambda: fake)
    status, output, _ = explain(f"{m}x{n}x{k}", "--json")
    assert status == 0
    document = json.loads(output)
    assert document["schema"] == "sgemm/explain/1"
    taken = chosen(document["rows"])
    version = LADDER[taken["version"]]
    assert (taken["m"], taken["n"], taken["k"]) == shape
    assert taken["multiprocessors"] == Device.attributes["MultiProcessorCount"]
    assert f"{m}x{n}x{k} on GPU 0 with {version.name}" in log
    assert f"{version.source}: {taken['blocks']} blocks of" in log
    assert f"'VECTOR': {int(taken['float4'])}" in log
    assert re.findall(r"^(\w+) is copied", log, re.MULTILINE) == [
        {"A": "a", "B": "b", "C": "out"}[name] for name in taken["copied"]
    ]


def test_for_people(explain):
    status, output, _ = explain("4096x4096x4096", "--sms", "132")
    assert status == 0
    assert output.startswith("4096×4096×4096 on 132 SMs: ")
    (line,) = (line for line in output.splitlines() if line.rstrip().endswith("taken"))
    (estimate,) = (
        e for e in explanation.explain(tuple(LADDER), 4096, 4096, 4096, "", 132) if e.chosen
    )
    assert line.split()[:5] == [
        estimate.version,
        "×".join(map(str, estimate.tile)),
        *map(str, (estimate.tiles, estimate.blocks, estimate.shared_tiles)),
    ]
    for name, version in LADDER.items():
        assert bool(re.search(rf"^ {name} ", output, re.MULTILINE)) == bool(version.peak_share)


def test_an_older_gpu(explain):
    _, output, _ = explain("1024x1024x1024", "--sms", "108", "--cc", "8.0", "--json")
    versions = [row["version"] for row in json.loads(output)["rows"]]
    assert versions == [
        name
        for name, version in LADDER.items()
        if version.peak_share and version.min_compute_capability <= (8, 0)
    ]


@pytest.mark.parametrize("options", [[], ["--gpu", "NVIDIA H200"]])
def test_a_gpu_that_is_not_here_takes_what_was_measured_on_it(explain, options):
    """Where it has a name; else the rule alone tells."""
    _, output, _ = explain("640x640x640", "--sms", "132", *options, "--json")
    taken = chosen(json.loads(output)["rows"])
    name = options[-1] if options else ""
    expected = choose(tuple(LADDER), 640, 640, 640, name, 132)
    assert (taken["version"], tuple(taken["tile"])) == (expected.name, expected.tile)
    by_rule = LADDER[fastest(tuple(LADDER), 640, 640, 640, 132)]
    assert (expected == by_rule) == (not options)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["64x64x64"], "there is no usable GPU: .*; or .* --sms 132 --gpu"),
        (["64x64x64", "--cc", "9.0"], "--cc: .* --sms"),
        (["64x64x64", "--gpu", "NVIDIA H200"], "--gpu: .* --sms"),
        (["64x64x64", "--sms", "132", "--gpu", "H200"], "no choices were measured on a 'H200'"),
        (["64x64x64", "--sms", "4", "--cc", "5.0"], "runs no version"),
        (["64x64x64", "--sms", "4", "--cc", "nine"], "'nine' is not a compute capability"),
        (["64x64x64", "--sms", "0"], "'0' is not a positive integer"),
        (["64x64", "--sms", "4"], "'64x64' is not MxNxK"),
        (["0x64x64", "--sms", "4"], "'0x64x64' is not MxNxK in positive numbers"),
    ],
)
def test_what_cannot_be_told(explain, arguments, reason):
    status, output, errors = explain(*arguments)
    assert status == 2
    assert output == ""
    assert re.fullmatch(f"python -m sgemm explain: .*{reason}.*\n", errors)


def test_a_gpu_that_does_not_answer_is_explained(explain, monkeypatch):
    class CUDARuntimeError(RuntimeError):
        status = 46

    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=Mock(side_effect=CUDARuntimeError)))
    monkeypatch.setattr("sgemm.check.usable_cupy", lambda: cupy)
    status, output, errors = explain("64x64x64")
    assert (status, output) == (2, "")
    assert errors.startswith("python -m sgemm explain: the GPU here: CUDA error 46, ")
    assert errors.count("\n") == 1
