"""The simulator's checks: every kind of fault is found with its line, whatever the order of the
threads, on right kernels into which it is planted; and right kernels have no findings."""

import json
from dataclasses import replace

import numpy as np
import problems as problems_module
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_faults import FAULTS, KERNELS, planted
from matrices import PLAIN, Layout
from places import SIMULATOR
from problems import Problem, problems

import sgemm
from sgemm import LADDER, simulator
from sgemm.__main__ import main
from sgemm.source import from_file

SEEDS = range(6)


def multiply(version, seed, m=20, n=72, k=36):
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    out = np.full((m + 4, n + 36), np.nan, np.float32)[:m, :n]  # with room around it
    with simulator.order(seed):
        sgemm.matmul(a, b, out=out, version=version)
    return out, a @ b


def shape_for(kernel):
    return {"m": 24, "n": 64, "k": 40} if kernel == "bulk" else {}


@pytest.mark.parametrize("kernel", ["tiles", "pipeline", "bulk"])
def test_without_a_fault_nothing_is_found(kernel):
    version = from_file(KERNELS / f"{kernel}.cu")
    for seed in range(20):
        with simulator.checked() as findings:
            result, expected = multiply(version, seed, **shape_for(kernel))
        assert findings == []
        assert np.array_equal(result, expected)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_with_its_line(name, tmp_path):
    fault = FAULTS[name]
    kernel = tmp_path / "planted.cu"
    kernel.write_text(planted(name))
    lines = kernel.read_text().splitlines()
    version = from_file(kernel)
    for seed in SEEDS:
        with simulator.checked() as findings, pytest.raises(sgemm.KernelError) as raised:
            multiply(version, seed, **shape_for(fault.kernel))
        assert str(raised.value) == str(findings[0])
        where = {
            lines[finding.place.line - 1] if finding.place else ""
            for finding in findings
            if finding.kind == fault.kind
        }
        assert any(fault.where in line for line in where), "\n".join(map(str, findings))


@given(data=st.data())
def test_the_ladder_has_no_findings(version, data):
    problem = data.draw(problems(version))
    with simulator.checked() as findings:
        problems_module.multiply(problem, version, SIMULATOR)
    assert findings == []


@pytest.mark.parametrize("beta", [0.0, 3.0])
@pytest.mark.parametrize("beside", [-1, 0, 1, 4])
@pytest.mark.parametrize("k_beside", [-1, 0, 1, 4])
def test_the_ladder_has_no_findings_around_its_tiles(version, k_beside, beside, beta):
    """Beside the tiles' edges, with float4 where that is a multiple of four and without; and the
    result is right."""
    m, n, _ = (max(1, tile + beside) for tile in version.tile)
    k = max(1, 3 * version.tile[2] + k_beside)
    problem = Problem(
        *(m, n, k), out=PLAIN, alpha=2.0, beta=beta, data="small integers", sharing="always"
    )
    with simulator.checked() as findings:
        product = problems_module.multiply(problem, version, SIMULATOR)
    assert findings == []
    assert np.array_equal(product.c, product.in_integers())


@pytest.mark.parametrize(
    ("name", "layout"), [("v1", Layout(row_step=-1, col_step=3)), ("v0", PLAIN)]
)
@pytest.mark.parametrize("size", [1, 31, 32, 33, 70])
def test_copies_have_no_findings(size, name, layout):
    """Of all three matrices, and from rows to the columns that v0 takes of B; and of the scaling
    that a product without terms is."""
    problem = Problem(size, 102 - size, 40, layout, layout, layout, beta=2.0)
    for alpha in (1.0, 0.0):
        with simulator.checked() as findings:
            product = problems_module.multiply(
                replace(problem, alpha=alpha), LADDER[name], SIMULATOR
            )
        assert findings == []
        assert product.residual().ok


def test_a_finding_tells_all_about_itself(tmp_path):
    """Kernel, line and the line that it was inlined at, block, thread, address, what it collides
    with."""
    kernel = tmp_path / "mine.cu"
    text = planted("no barrier after the copies")
    kernel.write_text(text)
    with simulator.checked() as findings, pytest.raises(sgemm.KernelError):
        multiply(from_file(kernel), 0)
    finding = next(finding for finding in findings if finding.kind == "race")
    lines = text.splitlines()
    copies = [n for n, line in enumerate(lines, 1) if "copy_async<" in line]
    assert finding.kernel == finding.place.file == "mine.cu"
    assert finding.other_place.file == "mine.cu"
    assert finding.other_place.line in copies
    assert {file for file, _ in finding.other_place.callers} == {"mine.cu"}
    assert finding.block in range(9)
    assert finding.thread in range(64)
    assert finding.address
    assert finding.times > 1
    assert f"block {finding.block} thread {finding.thread}: race: reads what thread" in str(finding)
    assert f": {finding.other_place} [address " in str(finding)
    without_a_line = str(replace(finding, other_place=None))
    assert ": a line that the compiler does not tell [address " in without_a_line


def test_what_is_checked_computes_the_same(version):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((70, 70)).astype(np.float32) for _ in range(2))
    plain = sgemm.matmul(a, b, version=version)
    with simulator.checked():
        checked = sgemm.matmul(a, b, version=version)
    with simulator.counted():
        counted = sgemm.matmul(a, b, version=version)
    assert np.array_equal(plain, checked)
    assert np.array_equal(plain, counted)


def test_a_launch_without_operands_is_refused():
    """The checks would know nothing of its memory."""
    with simulator.checked(), pytest.raises(sgemm.ArgumentError, match="operands: "):
        simulator.launch(
            KERNELS / "tiles.cu", "sgemm", from_file(KERNELS / "tiles.cu").defines(True), 1, 64, ()
        )


@pytest.mark.parametrize("name", ["no barrier after the copies", "leaves elements out"])
def test_the_command_lists_all_findings(name, tmp_path, capsys):
    fault = FAULTS[name]
    kernel = tmp_path / "mine.cu"
    kernel.write_text(planted(name))
    arguments = ["check", "--sanitize", "--source", str(kernel), "--shape", "20x72x36", "--json"]
    assert main(arguments) == 1
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["where"] == "simulator"
    assert row["verdict"] == "wrong"
    assert f"{fault.kind}: " in row["detail"]
    assert "mine.cu" in row["detail"]
    assert main(["check", "--sanitize", "--version", "v0", "--shape", "20x72x36"]) == 0
