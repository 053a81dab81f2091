"""What the compiler makes of every version for every GPU generation; needs no GPU."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

import sgemm
from benchmarks import machine_code, resources
from sgemm import LADDER, compiler, inspection, ptxas, sass
from sgemm.__main__ import main
from sgemm.compiler import runs_on
from sgemm.inspection import CLAIMS, inspect, refuted
from sgemm.kernel_files import kernel_path, kernels_folder
from sgemm.occupancy import GENERATIONS, MULTIPROCESSORS, multiprocessor, occupancy

pytest.importorskip("cuda.bindings.nvrtc")
if sass.find_disassembler() is None:
    pytest.skip("there is no nvdisasm", allow_module_level=True)

ARCH = "sm_90"


@pytest.mark.parametrize(
    ("claim", "version", "arch"),
    [
        pytest.param(claim, version, arch, id=f"{version.name}-{arch}-{claim.sentence}")
        for claim in CLAIMS
        for version in LADDER.values()
        for arch in GENERATIONS
        if claim.concerns(version) and runs_on(version, arch)
    ],
)
def test_the_ladder_s_sentences_hold(claim, version, arch):
    assert claim.holds(version, inspect(version, arch))


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.sentence)
def test_every_sentence_is_about_some_version(claim):
    assert any(claim.concerns(version) for version in LADDER.values())


# Planted mistakes: each refutes the sentence that is about it.


def refuted_by(version, arch=ARCH):
    return " ".join(refuted(version, inspect(version, arch)))


def changed(version, tmp_path, file, old, new):
    """The version with ``old`` replaced in one of the files that its kernel consists of."""
    for name in {version.source, file}:
        text = kernel_path(name).read_text()
        assert name != file or old in text
        (tmp_path / name).write_text(text.replace(old, new) if name == file else text)
    return replace(version, source=str(tmp_path / version.source))


def test_planted_spill():
    """Four blocks of v3 per SM leave 128 registers per thread, and 128 sums alone need them."""
    assert "spilled" in refuted_by(replace(LADDER["v3"], blocks_per_sm=4))


def test_planted_scalar_load(tmp_path):
    planted = changed(
        LADDER["v2"], tmp_path, "tile.cuh", "if (VECTOR && valid == 4) {", "if (false) {"
    )
    assert "float4 by float4" in refuted_by(planted)
    assert "128 bits wide or in bulk" in refuted_by(planted)


def test_planted_multiply_and_add(tmp_path):
    fused = "sum = fmaf(a[k], b[k * ldb], sum)"
    unfused = "sum = __fadd_rn(sum, __fmul_rn(a[k], b[k * ldb]))"
    planted = changed(LADDER["v1"], tmp_path, LADDER["v1"].source, fused, unfused)
    assert "one FFMA" in refuted_by(planted)


def test_planted_multiply_and_add_among_ffma(tmp_path):
    """One of v2's sixty-four."""
    fused = "sum = fmaf(a_tile[row][k], b_tile[k][col], sum)"
    unfused = f"{fused}, sum = k == 9 ? __fadd_rn(sum, __fmul_rn(sum, sum)) : sum"
    planted = changed(LADDER["v2"], tmp_path, LADDER["v2"].source, fused, unfused)
    assert inspect(planted, ARCH).loop.unfused == 1
    assert "one FFMA" in refuted_by(planted)


def test_planted_barrier(tmp_path):
    wait = "copy_async_wait<0>();"
    twice = f"{wait} __syncthreads();"
    planted = changed(LADDER["v4"], tmp_path, LADDER["v4"].source, wait, twice)
    assert "one barrier per step" in refuted_by(planted)


# Agreement with NVIDIA's own tools.


def cuobjdump():
    beside = Path(sass.find_disassembler()).with_name("cuobjdump")
    return str(beside) if beside.exists() else shutil.which("cuobjdump")


def test_registers_are_what_cuobjdump_finds(version, tmp_path):
    if cuobjdump() is None:
        pytest.skip("there is no cuobjdump")
    cubin = tmp_path / "cubin"
    compiled = compiler.compile(version, ARCH)
    cubin.write_bytes(compiled.cubin)
    output = subprocess.run(
        [cuobjdump(), "-res-usage", cubin], capture_output=True, text=True, check=True
    ).stdout
    found = {name: int(n) for name, n in re.findall(r"(REG|SHARED|LOCAL):(\d+)", output)}
    reserved = MULTIPROCESSORS[ARCH].reserved_bytes if found["SHARED"] else 0
    assert found["REG"] == compiled.registers
    assert found["SHARED"] - reserved in (compiled.shared_bytes, compiled.shared_bytes - reserved)
    assert (found["LOCAL"] == 0) == (compiled.spill_bytes == 0)


@pytest.mark.parametrize(
    ("version", "spills"),
    [(LADDER["v2"], False), (replace(LADDER["v3"], blocks_per_sm=4), True)],
    ids=["fits", "spills"],
)
def test_registers_and_spills_are_what_nvcc_reports(version, spills, tmp_path):
    """Exactly those of a compiler of the same release; another one is a few registers off."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("there is no nvcc")
    defines = [f"-D{name}={value}" for name, value in version.defines(vector=True).items()]
    options = ["-std=c++17", f"-arch={ARCH}", "-cubin", "-Xptxas", "-v", *defines]
    path = kernel_path(version.source)
    log = subprocess.run(
        [nvcc, *options, "-o", tmp_path / "cubin", path], capture_output=True, text=True, check=True
    ).stderr
    reported, found = ptxas.parse(log), inspect(version, ARCH)
    assert found.registers == pytest.approx(reported.registers, abs=8)
    assert found.shared_bytes == reported.shared_bytes
    assert (found.spill_bytes > 0) == (reported.spill_bytes > 0) == spills
    listing = sass.disassemble(sass.find_disassembler(), tmp_path / "cubin")
    assert (sass.count(sass.parse(listing)).local_accesses > 0) == spills


# Occupancy: NVIDIA's calculator for the same figures.


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared_bytes", "blocks", "limiter"),
    [
        ("sm_90", 256, 32, 0, 8, "warps"),
        ("sm_90", 128, 255, 36864, 2, "registers"),
        ("sm_90", 128, 168, 0, 3, "registers"),
        ("sm_90", 128, 32, 56 * 1024, 4, "shared memory"),
        ("sm_90", 128, 32, 57 * 1024, 3, "shared memory"),
        ("sm_90", 32, 16, 0, 32, "blocks"),
        ("sm_86", 1024, 32, 0, 1, "warps"),
        ("sm_80", 96, 40, 0, 16, "registers"),
        ("sm_75", 64, 32, 32 * 1024, 2, "shared memory"),
        ("sm_90a", 1024, 65, 0, 0, "registers"),
    ],
)
def test_occupancy(arch, threads, registers, shared_bytes, blocks, limiter):
    sm = multiprocessor(arch)
    found = occupancy(sm, threads, registers, shared_bytes)
    assert (found.blocks, found.limiter) == (blocks, limiter)
    assert found.share == blocks * -(-threads // 32) / sm.warps


def test_an_architecture_whose_limits_are_not_known():
    assert multiprocessor("sm_999") is None


# The asv series.


def records(*keys):
    found = {}
    machine_code.answer([], keys, found.__setitem__)
    return found


@pytest.fixture
def pinned(monkeypatch):
    """As with the compiler whose figures are recorded."""
    monkeypatch.setattr(resources, "_other_compiler", lambda: None)


def test_the_series_are_what_is_inspected(pinned):
    found = records("v3 sm_80", f"v4 {ARCH}")
    suite = machine_code.MachineCode()
    for version, arch in (("v3", "sm_80"), ("v4", ARCH)):
        inspected = inspect(version, arch)
        suite.setup(found, version, arch)
        assert suite.track_ffma_share(found, version, arch) == inspected.loop.ffma_share
        assert suite.track_occupancy(found, version, arch) == inspected.occupancy.share


def test_a_version_that_does_not_run_there_is_not_a_failure(pinned, monkeypatch):
    old = replace(LADDER["v4"], min_compute_capability=(9, 0))
    monkeypatch.setitem(resources.LADDER, "v4", old)
    assert records("v4 sm_89") == {"v4 sm_89": {"skip": "v4 needs compute capability 9.0"}}


def test_without_a_disassembler_there_is_nothing_to_record(pinned, monkeypatch):
    reader = machine_code.load("sass")
    monkeypatch.setattr(reader, "find_disassembler", lambda: None)
    monkeypatch.setattr(machine_code, "load", lambda name: reader)
    found = records("v0 sm_90")
    with pytest.raises(NotImplementedError, match="nvdisasm is not installed"):
        machine_code.MachineCode().setup(found, "v0", ARCH)


# The command.


def run(capsys, *arguments):
    try:
        status = main(["inspect", *map(str, arguments)])
    except SystemExit as exit:
        status = exit.code
    output = capsys.readouterr()
    return status, output.out, output.err


def test_the_document_has_every_version_and_generation(capsys):
    status, output, _ = run(capsys, "--json")
    document = json.loads(output)
    assert status == 0
    assert document["schema"] == "sgemm/inspect/1"
    assert [(row["version"], row["arch"]) for row in document["rows"]] == [
        (version.name, arch)
        for version in LADDER.values()
        for arch in GENERATIONS
        if runs_on(version, arch)
    ]
    for row in document["rows"]:
        assert row["spill_bytes"] == 0
        assert row["loop"]["ffma_share"] == row["loop"]["ffma"] / row["loop"]["instructions"]
        assert row["refuted"] == []


def test_the_tables(capsys):
    status, output, _ = run(capsys, "--version", "v4", "--arch", ARCH)
    found = inspect("v4", ARCH)
    assert status == 0
    for figure in (found.registers, found.loop.instructions, found.kernel.instructions):
        assert re.search(rf" {figure} ", output)
    assert "registers" in output
    assert f"{found.loop.ffma_share:.1%}" in output
    assert max(map(len, output.splitlines())) <= 100


def test_the_main_loop_beside_a_version(capsys):
    status, output, _ = run(capsys, "--version", "v3", "--arch", ARCH, "--loop")
    (_, listing) = output.split("v3, sm_90: one pass through the main loop\n")
    lines = listing.splitlines()
    found = inspect("v3", ARCH)
    assert status == 0
    assert len(lines) == found.loop.instructions
    uses = [int(n) for n in re.findall(r"shared load, first used (\d+) instructions", listing)]
    assert (min(uses), median(uses)) == found.load_distances
    waits = sum(int(n) for n in re.findall(r"waits (\d+) cycle", listing))
    assert waits == found.dispatch_cycles - found.loop.instructions
    _, output, _ = run(capsys, "--version", "v3", "--arch", ARCH, "--loop", "--json")
    (row,) = json.loads(output)["rows"]
    assert len(row["main_loop"]) == len(lines)


def test_a_kernel_of_one_s_own(capsys):
    template = kernels_folder() / "template.cu"
    status, output, _ = run(capsys, "--source", template, "--arch", ARCH, "--json")
    (row,) = json.loads(output)["rows"]
    assert status == 0
    assert row["version"] == "template.cu"
    assert row["loop"]["ffma"] > 0


def test_a_refuted_sentence_is_shown(capsys, tmp_path):
    source = tmp_path / "scalar.cu"
    header = "// sgemm: TILE_M=8 TILE_N=32 THREADS=256 FLOAT4=1\n"
    source.write_text(header + kernel_path("v1_coalesced.cu").read_text())
    status, output, _ = run(capsys, "--source", source, "--arch", ARCH)
    assert status == 1
    assert "scalar.cu, sm_90: not so: A version with a float4 path reads" in output


def test_a_kernel_of_another_name(capsys, tmp_path):
    source = tmp_path / "named.cu"
    text = (kernels_folder() / "template.cu").read_text()
    source.write_text(re.sub(r"\bsgemm\(", "other(", text))
    status, _, errors = run(capsys, "--source", source, "--arch", ARCH)
    assert status == 2
    assert re.search("no instructions of 'sgemm'.*a kernel is called sgemm", errors)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--arch", "sm_999"], "sm_999"),
        (["--arch", "hopper"], "hopper.*sm_90"),
        (["--version", "v99"], "no 'v99'"),
        (["--version", "v0", "--arch", "sm_70"], "v0 needs compute capability 7.5 or later"),
        (["--source", "nowhere.cu"], "nowhere.cu"),
    ],
)
def test_what_cannot_be_told(capsys, arguments, reason):
    status, output, errors = run(capsys, *arguments)
    assert (status, output) == (2, "")
    assert len(errors.splitlines()) == 1
    assert re.search(reason, errors)


def test_without_a_disassembler_the_error_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(sass, "find_disassembler", lambda: None)
    inspection._disassembler.cache_clear()
    try:
        status, _, errors = run(capsys, "--version", "v0", "--arch", ARCH)
    finally:
        inspection._disassembler.cache_clear()
    assert status == 2
    assert "pip install" in errors


def test_what_was_inspected_is_not_read_again(monkeypatch):
    before = inspect("v0", ARCH)
    monkeypatch.setattr(inspection, "_disassemble", pytest.fail)
    assert inspect("v0", ARCH) == before


def test_no_gpu_is_touched():
    script = "from sgemm.inspection import inspect; inspect('v0', 'sm_90')"
    script += "; assert 'libcuda.so' not in open('/proc/self/maps').read()"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_errors_are_sgemm_s():
    with pytest.raises(sgemm.ArgumentError, match="sm_70"):
        inspect("v0", "sm_70")
