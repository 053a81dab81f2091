"""What the compiler reports for every version; needs NVRTC and no GPU."""

import subprocess
import sys

import pytest

import sgemm
from sgemm import LADDER

pytest.importorskip("cuda.bindings.nvrtc")

REGISTERS_PER_SM = 65536
ARCHITECTURES = ("sm_80", "sm_89", "sm_90")


@pytest.fixture(params=[True, False], ids=["float4", "scalar"])
def vector(request):
    return request.param


@pytest.fixture(params=ARCHITECTURES)
def compiled(request, version, vector):
    return sgemm.compile(version, request.param, vector=vector)


def test_resources(version, compiled):
    """As many blocks as the ladder promises fit the registers of an SM, nothing is spilled, and the
    ladder knows the shared memory."""
    assert compiled.registers * version.threads * version.blocks_per_sm <= REGISTERS_PER_SM
    assert compiled.spill_bytes == 0
    assert compiled.shared_bytes == version.shared_bytes


def test_the_cubin_is_an_elf_for_cuda(compiled):
    assert compiled.cubin[:4] == b"\x7fELF"
    assert int.from_bytes(compiled.cubin[18:20], "little") == 190  # EM_CUDA
    assert compiled.cubin.endswith(b"\0")
    assert f"Used {compiled.registers} registers" in compiled.log
    assert compiled.nvrtc.count(".") == 1


@pytest.mark.parametrize("name", LADDER)
def test_turing_has_a_way_without_asynchronous_copies(name):
    assert sgemm.compile(name, "sm_75").spill_bytes == 0


def test_debug_builds_keep_their_assertions():
    last = list(LADDER)[-1]
    assert b"assertion failed" in sgemm.compile(last, debug=True).cubin
    assert b"assertion failed" not in sgemm.compile(last).cubin


def test_defaults():
    assert sgemm.compile("v0") == sgemm.compile(LADDER["v0"], arch="sm_90", vector=True)


@pytest.mark.parametrize(
    ("error", "arguments", "named"),
    [
        (sgemm.ArgumentError, ("v99",), "version: .*v99.*v0"),
        (sgemm.ArgumentTypeError, (0,), "version: .*int"),
        (sgemm.ArgumentError, ("v0", "sm_70"), "arch: .*sm_70.*sm_90"),
        (sgemm.ArgumentError, ("v0", "hopper"), "arch: .*hopper.*sm_90"),
    ],
)
def test_arguments_that_are_not_accepted(error, arguments, named):
    with pytest.raises(error, match=f"^{named}"):
        sgemm.compile(*arguments)


def test_source_that_does_not_compile(tmp_path):
    source = tmp_path / "broken.cu"
    source.write_text("// sgemm: TILE_M=8 TILE_N=32 THREADS=256\nthis is no kernel\n")
    from sgemm.source import from_file

    with pytest.raises(sgemm.CompileError, match=r"broken\.cu(.|\n)*\(2\)"):
        sgemm.compile(from_file(source))


def test_without_nvrtc_the_error_says_what_to_install():
    script = """
import sys
sys.modules["cuda.bindings"] = None
import sgemm
try:
    sgemm.compile("v0")
except sgemm.MissingError as error:
    assert "NVRTC" in str(error) and "pip install" in str(error), error
else:
    raise AssertionError("compiled without NVRTC")
"""
    subprocess.run([sys.executable, "-c", script], check=True)
