"""The device-side assertions of debug builds: they stand behind the host's own guard."""

import os
import subprocess
import sys

import pytest

from sgemm import LADDER
from sgemm.kernel_files import sources

# Gives a kernel's float4 path an operand that the host would never give it.
BYPASS_THE_GUARD = """
import sys
from dataclasses import replace
import numpy as np
import sgemm
from places import GPU, SIMULATOR

place = {"simulator": SIMULATOR, "gpu": GPU}[sys.argv[1]]
version, misaligned = sgemm.LADDER[sys.argv[2]], sys.argv[3]
launch_of = place.backend.launch_of

def with_float4(backend, kernel, *launched):
    kernel = replace(kernel, defines={**kernel.defines, "VECTOR": 1})
    return launch_of(backend, kernel, *launched)

place.backend.launch_of = with_float4
buffers = {name: place.xp.zeros(65 * 64, np.float32) for name in ("a", "b", "out")}
matrices = {
    name: buffer[1:4097].reshape(64, 64) if name == misaligned else buffer[:4096].reshape(64, 64)
    for name, buffer in buffers.items()
}
sgemm.matmul(**matrices, version=version)
place.to_host(matrices["out"])
"""


def bypass(place, name, misaligned):
    return subprocess.run(
        [sys.executable, "-c", BYPASS_THE_GUARD, place.name, name, misaligned],
        env={
            **os.environ,
            "SGEMM_DEBUG": "1",
            "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)]),
        },
        capture_output=True,
        text=True,
        check=False,
    )


FLOAT4_VERSIONS = [name for name, version in LADDER.items() if version.float4]
# A transposed tile of A is copied float by float, whatever the alignment.
FLOAT4_LOADS = [
    (name, operand)
    for name in FLOAT4_VERSIONS
    for operand in ("a", "b")
    if operand == "b" or "a_transposed.cuh" not in sources(LADDER[name].source)
]


@pytest.mark.parametrize(("name", "misaligned"), FLOAT4_LOADS)
def test_misaligned_float4_loads_are_caught(place, name, misaligned):
    run = bypass(place, name, misaligned)
    assert run.returncode != 0
    assert "is_float4_address" in run.stdout + run.stderr
    assert ".cu" in run.stdout + run.stderr  # the file and line of the assertion


@pytest.mark.parametrize("name", FLOAT4_VERSIONS)
@pytest.mark.parametrize("misaligned", ["none", "out"])
def test_what_float4_allows_passes(place, name, misaligned):
    """The kernels look at C's address themselves."""
    run = bypass(place, name, misaligned)
    assert run.returncode == 0, run.stderr
