"""Kernels with a planted mistake: what the properties check must go red for each of them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matrices import Layout
from places import SIMULATOR
from problems import Problem, multiply

from sgemm import KernelError
from sgemm.source import from_file

PLANTED = Path(__file__).parent / "planted_kernels"
GUARDED = Layout(padding=4)


def planted(name):
    return from_file(PLANTED / f"{name}.cu")


def within_the_bound(place, name, **problem):
    problem = {"m": 40, "n": 70, "k": 30, "out": GUARDED, **problem}
    return multiply(Problem(**problem), planted(name), place).residual()


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_without_a_mistake_all_is_green(place, beta):
    assert within_the_bound(place, "right", beta=beta).ok


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize(
    ("name", "wrong_rows"),
    [("writes_nan", 40), ("writes_zeros", 40), ("writes_nothing", 40), ("misses_last_row", 1)],
)
def test_results_that_are_not_there(place, name, wrong_rows, beta):
    result = within_the_bound(place, name, beta=beta)
    assert not result.ok
    assert result.wrong == wrong_rows * 70
    assert result.first_wrong == (40 - wrong_rows, 0)


@pytest.mark.case("1.27")
def test_reading_c_where_beta_is_0(place):
    assert within_the_bound(place, "reads_c_with_beta_0").wrong == 40 * 70
    assert within_the_bound(place, "reads_c_with_beta_0", beta=0.5).ok


@pytest.mark.case("1.6", "1.50")
def test_writing_outside(place):
    with pytest.raises(AssertionError, match="written outside out"):
        within_the_bound(place, "writes_past_the_row")


@pytest.mark.case("1.4")
def test_float4s_in_a_shared_tile_that_does_not_allow_them():
    """The simulator stops where a GPU would; there compute-sanitizer looks."""
    with pytest.raises(KernelError, match=r"misaligned"):
        within_the_bound(SIMULATOR, "misaligned_shared_tile")


@pytest.mark.case("1.30")
def test_a_dropped_term_shows_with_integers_where_the_bound_is_blind(place):
    """One term of 8192 is smaller than the rounding error that the bound must allow; among ordinary
    values the bound sees it at a small K only."""
    assert not within_the_bound(place, "drops_last_term", k=30).ok
    long_sum = {"m": 3, "n": 3, "k": 8192}
    assert within_the_bound(place, "drops_last_term", data="uniform", **long_sum).ok
    problem = Problem(**long_sum, data="small integers")
    product = multiply(problem, planted("drops_last_term"), place)
    assert not np.array_equal(product.c, product.a @ product.b)
    product = multiply(problem, planted("right"), place)
    assert np.array_equal(product.c, product.a @ product.b)


@pytest.mark.case("1.50")
def test_memory_behind_a_fence_cannot_be_written():
    """By a kernel that writes one float more than it should. In a process of its own, which that
    may end."""
    script = """
import numpy as np
import sgemm
from matrices import between_fences
from test_planted_kernels import planted
ones = np.ones((9, 31), np.float32)
with between_fences(ones, at_end=True) as out:
    try:
        sgemm.matmul(np.ones((9, 4), "f4"), np.ones((4, 31), "f4"), out=out, version=planted(NAME))
    except sgemm.KernelError as error:
        print(f"failed: {error}")
    else:
        print("passed")
"""

    def run(name):
        path = os.pathsep.join([str(PLANTED.parent), str(PLANTED.parents[1])])
        return subprocess.run(
            [sys.executable, "-c", script.replace("NAME", repr(name))],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("right").stdout == "passed\n"
    overrun = run("writes_past_the_row")
    assert overrun.returncode < 0 or overrun.stdout.startswith("failed: ")
