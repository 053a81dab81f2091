"""What a warm call costs on the host, counted where that tells: no machine is too slow then."""

import json
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from subprocess import run
from time import process_time
from timeit import repeat

import numpy as np
import pytest
from fake_cupy import Device, fake

import sgemm
from sgemm import multiply
from sgemm.gpu import Gpu

__all__ = ["fake"]  # the fixture

PACKAGE = Path(sgemm.__file__).parent
CALLS = {"v4": 59, "v7": 67}  # of functions, by a product; some 20 % more than it makes
CALLS_OF_A_PREPARED_ONE = 12
SECONDS_TO_CHOOSE = 5e-6


@contextmanager
def calls():
    """Counts what the package's modules call within the context, by name; not the simulator's."""
    seen = Counter()

    def count(frame, event, called):
        if Path(frame.f_code.co_filename).parent == PACKAGE:
            if event == "call":
                seen[frame.f_code.co_qualname] += 1
            elif event == "c_call":
                seen[called.__qualname__] += 1

    sys.setprofile(count)
    try:
        yield seen
    finally:
        sys.setprofile(None)


@pytest.fixture
def matrices(fake):
    """Of so many tiles that the blocks of v7 share some on a fake GPU."""
    a, b = (fake.ones((256, 256), np.float32) for _ in range(2))
    return {"a": a, "b": b, "out": fake.empty((256, 256), np.float32)}


@pytest.mark.parametrize(("version", "most"), CALLS.items())
def test_a_warm_product_makes_few_calls(matrices, version, most):
    sgemm.matmul(**matrices, version=version)
    with calls() as seen:
        sgemm.matmul(**matrices, version=version)
    assert 0 < seen.total() <= most, seen


@pytest.mark.parametrize("version", CALLS)
def test_a_prepared_product_makes_hardly_any(matrices, version):
    launch = sgemm.prepare(**matrices, version=version)
    launch()
    with calls() as seen:
        launch()
    assert 0 < seen.total() <= CALLS_OF_A_PREPARED_ONE, seen


def test_a_warm_product_asks_the_driver_nothing(matrices, monkeypatch):
    sgemm.matmul(**matrices)
    for name in ("attributes", "compute_capability"):
        monkeypatch.delattr(Device, name)
    sgemm.matmul(**matrices)


def test_choosing_takes_no_time(fake):
    hardware = Gpu(Device()).hardware
    seconds = repeat(
        lambda: multiply._choose(None, hardware, 300, 200, 100), number=100, timer=process_time
    )
    assert min(seconds) / 100 < SECONDS_TO_CHOOSE


@pytest.fixture(scope="module")
def seconds_per_call():
    target = Path(__file__).with_name("overhead_target.py")
    finished = run([sys.executable, target], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("size", [64, 1024])
@pytest.mark.parametrize("into", ["out", "a new array"])
def test_a_warm_call_takes_the_host_at_most_twice_as_long_as_cupys(
    size, into, seconds_per_call, record_property
):
    seconds = seconds_per_call[f"{into} {size}"]
    for name, taken in seconds.items():
        record_property(f"{name}, microseconds", round(1e6 * taken, 2))
    print({name: f"{1e6 * taken:.1f} us" for name, taken in seconds.items()})
    assert seconds["sgemm"] <= 2 * seconds["cupy"]
    assert seconds["prepared"] <= seconds["sgemm"]
