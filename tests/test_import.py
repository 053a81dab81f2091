"""``import sgemm`` is instant and touches nothing of CUDA."""

import subprocess
import sys

import pytest

import sgemm

LIMIT_SECONDS = 0.3
SCRIPT = """
import sys, time
start = time.process_time()  # whatever else the machine has to do
import sgemm
seconds = time.process_time() - start
foreign = {name.partition(".")[0] for name in sys.modules} & {"cupy", "cuda", "torch", "pynvml"}
assert not foreign, foreign
with open("/proc/self/maps") as maps:
    assert "libcuda" not in maps.read() and "libnvrtc" not in maps.read()
print(seconds)
"""


@pytest.mark.case("4.9")
def test_import_is_instant_and_loads_no_cuda():
    seconds = min(
        float(
            subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True).stdout
        )
        for _ in range(3)
    )
    assert seconds < LIMIT_SECONDS


def test_a_product_of_numpy_arrays_loads_no_cuda():
    script = """
import sys
import numpy as np
import sgemm
one = np.ones((1, 1), np.float32)
assert sgemm.matmul(one, one) == 1
assert not {name.partition(".")[0] for name in sys.modules} & {"cupy", "cuda", "torch"}
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_public_names():
    assert set(sgemm.__all__) <= set(dir(sgemm))
    for name in sgemm.__all__:
        assert getattr(sgemm, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        sgemm.no_such_name  # noqa: B018


def test_errors_are_what_a_numpy_user_expects():
    kinds = {
        sgemm.ArgumentError: ValueError,
        sgemm.ArgumentTypeError: TypeError,
        sgemm.SimulatorLimitError: ValueError,
        sgemm.CompileError: RuntimeError,
        sgemm.KernelError: RuntimeError,
        sgemm.MissingError: RuntimeError,
    }
    for kind, builtin in kinds.items():
        assert issubclass(kind, sgemm.SgemmError)
        assert issubclass(kind, builtin)
