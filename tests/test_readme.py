"""README.md and docs/ show the recorded figures, and those of the ladder."""

import json
import re

import numpy as np
import pytest

from benchmarks import readme
from sgemm import LADDER

ENVIRONMENT = {
    "gpu": "NVIDIA H200",
    "problem": "4096x4096x4096",
    "driver": "580.95.05",
    "cuda": "13.0",
    "nvrtc": "13.5",
    "cublas": "13.1.0",
}


@pytest.fixture
def root(tmp_path):
    """A project with a README and one chapter, nothing filled in."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        "before\n<!-- ladder:begin -->\nold\n<!-- ladder:end -->\nbetween\n"
        "<!-- calibration:begin -->\n<!-- calibration:end -->\nafter\n"
    )
    (tmp_path / "docs" / "v1.md").write_text(
        "# v1\n<!-- measured:begin -->\n<!-- measured:end -->\nThe cause.\n"
    )
    return tmp_path


def row(version, **figures):
    blank = dict.fromkeys(("gain", "share_of_peak", "ratio_to_cublas", "error_over_bound"))
    return {"version": version, "title": version, "verdict": "right", **blank, **figures}


def record(root, *rows):
    document = {"environment": ENVIRONMENT, "rows": rows}
    (root / readme.TABLE).write_text(json.dumps(document))


def test_the_committed_files_are_what_is_generated():
    files = readme.generate()
    assert files.keys() == {
        readme.ROOT / "README.md",
        readme.ROOT / "docs" / "errors.md",
        readme.ROOT / "docs" / "sweep.md",
        *(readme.ROOT / "docs" / f"{name}.md" for name in LADDER),
    }
    for path, text in files.items():
        assert path.read_text() == text, f"run python -m benchmarks.readme: {path.name} is stale"


def test_the_example_runs():
    text = (readme.ROOT / "README.md").read_text()
    example = re.search("```python\n(.*?)```", text, re.DOTALL)
    names = {}
    exec(example[1], names)
    product = names["a"].astype(float) @ names["b"]
    np.testing.assert_allclose(names["c"], 2.5 * product, atol=1e-4)


def test_the_sweep_has_a_line_per_shape(root):
    (root / "docs" / "sweep.md").write_text("<!-- sweep:begin -->\n<!-- sweep:end -->")
    sweep = root / "docs" / "sweep.md"
    assert readme.NOT_MEASURED in readme.generate(root)[sweep]
    measured = {"version": "v8", "blocks": 128, "shared_tiles": 0, "wrong": None}
    measured |= {"problem": "1x2x3", "gflops": 4000.4, "cublas_gflops": 2000.2}
    where = dict.fromkeys(("gpu", "driver", "cuda", "nvrtc", "cublas"), "x")
    document = {
        "environment": where,
        "summary": {"geometric_mean": 2.0, "least": 2.0, "least_problem": "1x2x3"},
        "rows": [{**measured, "ratio_to_cublas": 2.0}],
    }
    (root / readme.SWEEP).write_text(json.dumps(document))
    assert "| 1×2×3 | v8 | 128 | 0 | 4,000 | 2,000 | 2.000 |\n" in readme.generate(root)[sweep]
    assert "x, driver x" in readme.generate(root)[sweep]
    document["environment"] = {**where, "checkout": "0123abcdef"}
    document["summary"]["up_to"] = {"v7": 1.5}
    document["rows"][0]["up_to"] = {"v7": {"ratio_to_cublas": 1.5}}
    (root / readme.SWEEP).write_text(json.dumps(document))
    text = readme.generate(root)[sweep]
    assert "| cuBLAS | ratio | up to v7 |\n|---|---|--:|--:|--:|--:|--:|--:|\n" in text
    assert "| 2,000 | 2.000 | 1.500 |\n" in text
    assert "Without the versions after v7: 1.500. " in text
    assert "x, commit 0123abcdef, driver x" in text
    document["rows"][0]["wrong"] = "matmul is wrong"
    (root / readme.SWEEP).write_text(json.dumps(document))
    with pytest.raises(ValueError, match="matmul is wrong"):
        readme.generate(root)


def test_figures_go_between_the_markers(root):
    record(
        root,
        row("v0", gflops=400.4),
        row("v1", gflops=5999.5, gain=15.0, share_of_peak=0.0913, ratio_to_cublas=0.118),
        row("cublas", title="cuBLAS FP32", gflops=50900.0, share_of_peak=0.775),
    )
    texts = {path.name: text for path, text in readme.generate(root).items()}

    lines = texts["README.md"].splitlines()
    assert lines[0] == "before"
    assert lines[-1] == "after"
    assert "old" not in lines
    (v0,) = [line for line in lines if line.startswith("| v0 |")]
    assert v0.endswith("| 400 |  |  |  |  | 800 |")
    (v1,) = [line for line in lines if line.startswith("| [v1](docs/v1.md) |")]
    assert v1.endswith("| 6,000 | 15.00× | 9.1% | 11.8% |  | 2,600 |")
    (cublas,) = [line for line in lines if "cuBLAS FP32" in line]
    assert cublas.endswith("| 50,900 |  | 77.5% |  |  |  |")
    assert any("NVIDIA H200, 4096×4096×4096" in line and "580.95.05" in line for line in lines)

    assert texts["v1.md"].startswith("# v1\n<!-- measured:begin -->\nNVIDIA H200, 4096×4096×4096: ")
    assert "**6,000 GFLOPS**, 15.00 times v0; 9.1% of the FFMA peak" in texts["v1.md"]
    assert texts["v1.md"].endswith("<!-- measured:end -->\nThe cause.\n")


def calibrated(version, problem, share, hits, asv=0, trials=100):
    return {
        "version": version,
        "problem": problem,
        "share": share,
        "slower": {"hits": hits, "trials": trials},
        "asv_continuous": {f: {"hits": asv, "trials": trials} for f in ("1.05", "1.1")},
    }


def test_the_gate_s_error_rates_stand_beside_asv_s(root):
    document = {
        "environment": [
            {
                "gpu": "NVIDIA H200",
                "processes": 18,
                "date": "2026-11-30",
                "benchmarks": 55,
                "gpu_id": "a1",
            },
            {
                "gpu": "NVIDIA H200",
                "processes": 17,
                "date": "2026-12-01",
                "benchmarks": 39,
                "gpu_id": "b2",
            },
            {
                "gpu": "NVIDIA H200",
                "processes": 6,
                "date": "2026-12-01",
                "benchmarks": 42,
                "gpu_id": "c3",
            },
        ],
        "gates": {
            "slower": {"hits": 1, "trials": 300},
            "undecided": {"hits": 0, "trials": 300},
        },
        "rows": [
            calibrated("v1", "1024x1024x1024", 0.0, 7),  # never slowed down: not shown
            *(calibrated(v, "4096x4096x4096", 0.0, 0) for v in ("v3", "v4")),
            *(calibrated(v, "4096x4096x4096", 0.01, 97, asv=3) for v in ("v3", "v4")),
            *(calibrated(v, "512x512x512", 0.0, 1) for v in ("v3", "v4")),
            *(calibrated(v, "512x512x512", 0.01, 5) for v in ("v3", "v4")),
        ],
    }
    (root / readme.CALIBRATION).write_text(json.dumps(document))
    lines = readme.generate(root)[root / "README.md"].splitlines()
    start = lines.index("<!-- calibration:begin -->")
    heading, _, small, large, _, about = lines[start + 1 : start + 7]
    assert heading == (
        "| problem | identical code | 1.0% slower | asv, identical | asv, 1% slower |"
    )
    assert small.startswith("| 512×512×512 | 2/200 (0.1%–3.6%) | 10/200 (")
    assert large.startswith("| 4096×4096×4096 | 0/200 (0.0%–1.8%) | 194/200 (93.6%–98.9%) | 0/200")
    assert large.endswith("| 6/200 (1.1%–6.4%) |")
    assert "v3 and v4 together" in about
    assert (
        "39, 42 or 55 benchmarks each: 1/300 (0.0%–1.8%) called slower, 0/300 (0.0%–1.2%)" in about
    )
    assert (
        "18 processes on GPU a1 (2026-11-30), 17 processes on GPU b2 (2026-12-01) and 6 p" in about
    )
    assert "6 processes on GPU c3 (2026-12-01); every two" in about


def test_without_a_record_the_ladder_is_there_all_the_same(root):
    texts = {path.name: text for path, text in readme.generate(root).items()}
    assert "Not measured yet." in texts["README.md"]
    assert "Not measured yet." in texts["v1.md"]
    for version in LADDER.values():
        assert version.change in texts["README.md"]


def test_a_wrong_result_is_not_shown(root):
    record(root, row("v0", gflops=None, verdict="wrong"))
    with pytest.raises(ValueError, match="v0"):
        readme.generate(root)


def test_a_file_without_markers(root):
    (root / "README.md").write_text("nothing")
    with pytest.raises(ValueError, match="ladder:begin"):
        readme.generate(root)
