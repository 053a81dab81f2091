"""What the compiler reports for every version; needs NVRTC and no GPU."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

import sgemm
from sgemm import LADDER, causes, compiler, releases
from sgemm.source import from_file

pytest.importorskip("cuda.bindings.nvrtc")

REGISTERS_PER_SM = 65536
ARCHITECTURES = ("sm_80", "sm_89", "sm_90")


@pytest.fixture(params=[True, False], ids=["float4", "scalar"])
def vector(request):
    return request.param


def runs_on(version, arch):
    return releases.capability_of(arch) >= version.min_compute_capability


@pytest.fixture(
    params=[(v, arch) for v in LADDER.values() for arch in ARCHITECTURES if runs_on(v, arch)],
    ids=lambda pair: f"{pair[0].name}-{pair[1]}",
)
def pair(request):
    """A version and an architecture that it runs on."""
    return request.param


@pytest.fixture
def compiled(pair, vector):
    version, arch = pair
    return sgemm.compile(version, arch, vector=vector)


@pytest.mark.case("1.41")
def test_resources(pair, compiled):
    """As many blocks as the ladder promises fit the registers of an SM, nothing is spilled, and the
    ladder knows the shared memory."""
    version, _ = pair
    assert compiled.registers * version.threads * version.blocks_per_sm <= REGISTERS_PER_SM
    assert compiled.spill_bytes == 0
    assert compiled.shared_bytes == version.shared_bytes


def test_the_cubin_is_an_elf_for_cuda(compiled):
    assert compiled.cubin[:4] == b"\x7fELF"
    assert int.from_bytes(compiled.cubin[18:20], "little") == 190  # EM_CUDA
    assert compiled.cubin.endswith(b"\0")
    assert f"Used {compiled.registers} registers" in compiled.log
    assert compiled.nvrtc.count(".") == 1


@pytest.mark.parametrize("name", [v.name for v in LADDER.values() if runs_on(v, "sm_75")])
def test_turing_has_a_way_without_asynchronous_copies(name):
    assert sgemm.compile(name, "sm_75").spill_bytes == 0


def test_an_architecture_that_a_version_does_not_run_on():
    newer = replace(LADDER["v0"], name="newer", min_compute_capability=(9, 0))
    with pytest.raises(sgemm.ArgumentError, match=r"^arch: newer needs .* 9\.0 .*, not 'sm_89'"):
        sgemm.compile(newer, "sm_89")


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
        (sgemm.ArgumentError, ("v0", "hopper"), "arch: 'hopper': .*sm_90.*pass one of these"),
        (sgemm.ArgumentTypeError, ("v0", 90), "arch: int .*'sm_90'"),
        (sgemm.ArgumentError, ("v0", "sm_35"), "arch: sm_35.*every kernel needs .* 7.5"),
        (sgemm.ArgumentError, ("v0", "sm_990"), "arch: sm_990.*it knows .*sm_90.*--upgrade"),
    ],
)
def test_arguments_that_are_not_accepted(error, arguments, named):
    with pytest.raises(error, match=f"^{named}"):
        sgemm.compile(*arguments)


@pytest.fixture
def nvrtc_12_6(monkeypatch):
    """An NVRTC from before the GPUs of compute capability 12.0."""
    monkeypatch.setattr(compiler, "_release", lambda: (12, 6))
    monkeypatch.setattr(compiler, "architectures", lambda: ["sm_61", "sm_75", "sm_90"])


@pytest.mark.case("3.1", "3.2")
def test_an_architecture_that_nvrtc_does_not_know_yet(nvrtc_12_6):
    """The GPU's compute capability, NVRTC's release and the one that is needed are named."""
    with pytest.raises(sgemm.ArgumentError) as raised:
        sgemm.compile("v0", "sm_120")
    message = str(raised.value)
    assert message.startswith("arch: sm_120, compute capability 12.0: ")
    assert "needs CUDA 12.8 or later, and NVRTC here is 12.6" in message
    assert message.endswith('pip install --upgrade "nvidia-cuda-nvrtc-cu12>=12.8"')
    assert "\n" not in message


@pytest.mark.case("3.3")
def test_a_gpu_that_nvrtc_has_dropped(monkeypatch):
    monkeypatch.setattr(compiler, "_release", lambda: (13, 0))
    monkeypatch.setattr(compiler, "architectures", lambda: ["sm_75", "sm_90"])
    with pytest.raises(sgemm.ArgumentError) as raised:
        sgemm.compile("v0", "sm_61")
    message = str(raised.value)
    assert message.startswith("arch: sm_61, compute capability 6.1: NVRTC 13.0, which knows sm_75")
    assert "is too new for this GPU: CUDA 12.9 is the last that compiles for it" in message


@pytest.mark.case("3.3")
def test_a_gpu_that_nvrtc_still_knows_and_the_ladder_does_not(nvrtc_12_6):
    with pytest.raises(sgemm.ArgumentError, match=r"^arch: sm_61.*every kernel needs"):
        sgemm.compile("v0", "sm_61")


def test_the_table_of_releases_is_what_nvrtc_compiles_for():
    """A newer NVRTC may know more; then releases.py has fallen behind."""
    here = releases.parse(compiler.nvrtc_version())
    expected = {
        "sm_{}{}".format(*capability)
        for capability, first in releases.FIRST_RELEASE.items()
        if first <= here <= releases.LAST_RELEASE.get(capability, here)
    }
    assert expected == set(compiler.architectures())


def kernel(folder, text):
    source = folder / "broken.cu"
    source.write_text(f"// sgemm: TILE_M=8 TILE_N=32 THREADS=256\n{text}\n")
    return from_file(source)


def test_source_that_does_not_compile(tmp_path):
    with pytest.raises(sgemm.CompileError, match=r"broken\.cu(.|\n)*\(2\)"):
        sgemm.compile(kernel(tmp_path, "this is no kernel"))


@pytest.mark.case("3.8")
def test_a_cuda_header_that_is_not_there(tmp_path):
    """The ladder's kernels include none, so they compile without; for one's own the message names
    the package that has them, and says that it would not help."""
    with pytest.raises(sgemm.CompileError) as raised:
        sgemm.compile(kernel(tmp_path, "#include <cuda_fp16.h>"))
    message = str(raised.value)
    assert "cuda_fp16.h" in message
    assert str(causes.HEADER_NOT_FOUND) in message
    assert "nvidia-cuda-runtime" in message


WITHOUT_NVRTC = """
import sys
sys.modules["cuda.bindings"] = None
import sgemm
try:
    sgemm.compile("v0")
except sgemm.MissingError as error:
    print(error)
"""


@pytest.mark.case("3.7")
def test_without_nvrtc_the_error_says_what_to_install():
    said = python(WITHOUT_NVRTC)
    assert said.startswith("no NVRTC to compile kernels with (")
    assert "; repair: pip install nvidia-cuda-nvrtc" in said
    assert said.count("\n") == 1


@pytest.mark.case("3.8")
def test_a_cuda_path_that_leads_nowhere_is_named(tmp_path):
    said = python(WITHOUT_NVRTC, CUDA_PATH=str(tmp_path))
    assert f"CUDA_PATH={tmp_path} holds no CUDA toolkit" in said
    assert "holds no" not in python(WITHOUT_NVRTC, CUDA_PATH="", CUDA_HOME="")


@pytest.mark.case("3.7")
def test_where_libnvrtc_is_hidden_its_name_is_said(tmp_path):
    """The binding is there, and its loader finds no library."""
    script = """
import cuda.pathfinder
def find(name):
    raise cuda.pathfinder.DynamicLibNotFoundError(f"lib{name}.so.13 not found\\nlooked here")
import cuda.pathfinder._dynamic_libs.load_nvidia_dynamic_lib as loader
cuda.pathfinder.load_nvidia_dynamic_lib = loader.load_nvidia_dynamic_lib = find
import sgemm
try:
    sgemm.compile("v0")
except sgemm.MissingError as error:
    print(error)
"""
    said = python(script, CUDA_PATH="", CUDA_HOME="")
    assert said.startswith("no NVRTC to compile kernels with (libnvrtc.so.13 not found): ")


def test_an_nvrtc_that_fails_is_not_shown_bare(monkeypatch):
    class Status:
        name = "NVRTC_ERROR_INTERNAL_ERROR"

    with pytest.raises(sgemm.CompileError, match="NVRTC_ERROR_INTERNAL_ERROR: the compiler itself"):
        compiler._result((Status(),))


def python(script, **environment):
    """What a Python process prints."""
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
