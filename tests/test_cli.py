"""The commands: what they print, and the status that they end with."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sgemm import LADDER, ArgumentError, causes, check, compile, doctor, inspection, report
from sgemm.__main__ import main
from sgemm.kernel_files import kernels_folder
from sgemm.source import from_file

PLANTED = Path(__file__).parent / "planted_kernels"
TEMPLATE = kernels_folder() / "template.cu"
ASCII_ALONE = """
import sys
assert sys.stdout.encoding != "utf-8"
sys.stdout.reconfigure(errors="strict")
from sgemm.__main__ import main
sys.exit(main())
"""
INTERRUPTED = """
import signal, sys
from sgemm import __main__ as command

def versions(options):
    print("seen")
    signal.raise_signal(signal.SIGINT)

command._versions = versions
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.exit(command.main(["versions"]))
"""
GOOD_HEADER = "// sgemm: TILE_M=8 TILE_N=32 THREADS=256"


@pytest.fixture
def no_gpu(monkeypatch):
    """As on a machine without a GPU."""
    monkeypatch.delenv("SGEMM_REQUIRE_GPU", raising=False)
    monkeypatch.setattr(check, "usable_cupy", lambda: None)
    examine = doctor.examine
    monkeypatch.setattr(doctor, "examine", lambda: examine(doctor.Probes(driver=lambda: None)))


@pytest.fixture
def run(no_gpu, capsys):
    """Run a command: its exit status, standard output and standard error."""

    def run(*arguments):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as exit:  # argparse's
            status = exit.code
        output = capsys.readouterr()
        return status, output.out, output.err

    return run


def document(output, command):
    """The one JSON document that a command prints, checked for the form that all have."""
    found = json.loads(output, parse_constant=pytest.fail)  # NaN and Infinity are no JSON
    assert list(found) == ["schema", "command", "environment", "rows"]
    assert found["schema"] == f"sgemm/{command}/1"
    assert found["command"] == command
    assert {"sgemm", "python", "platform"} <= set(found["environment"])
    return found


def test_as_a_module():
    result = subprocess.run(
        [sys.executable, "-m", "sgemm", "versions", "--json"], capture_output=True, text=True
    )
    assert result.returncode == 0
    assert result.stderr == ""
    document(result.stdout, "versions")


@pytest.mark.parametrize("form", ["", "--json"])
def test_output_that_nobody_reads(form):
    """The reader is gone before anything is written."""
    command = f"(sleep 1; {sys.executable} -m sgemm versions {form}; echo $? >&2) | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.stderr == "2\n"


@pytest.mark.parametrize("form", ["", "--json"])
@pytest.mark.parametrize(
    ("output", "reason"), [(">/dev/full", "No space left"), (">&-", "output is closed")]
)
def test_output_that_cannot_be_written(form, output, reason):
    command = f"{sys.executable} -m sgemm versions {form} {output}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.returncode == 2
    assert re.fullmatch(f"python -m sgemm versions: .*{reason}.*\n", result.stderr)


@pytest.mark.parametrize("form", ["", "--json"])
def test_output_that_takes_ascii_alone(form):
    ascii_alone = {**os.environ, "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ascii_alone.pop("PYTHONIOENCODING", None)
    command = [sys.executable, "-c", ASCII_ALONE, "versions", *form.split()]
    result = subprocess.run(command, env=ascii_alone, capture_output=True)
    assert result.returncode == 0, result.stderr
    text = result.stdout.decode("ascii")
    if form:
        titles = [row["title"] for row in document(text, "versions")["rows"]]
        assert titles == [version.title for version in LADDER.values()]


def test_json_loses_nothing_on_output_that_takes_ascii_alone(capsys):
    report.print_json("check", report.base_environment(), [{"version": "é.cu"}])
    output = capsys.readouterr().out
    assert output.isascii()
    assert document(output, "check")["rows"] == [{"version": "é.cu"}]


def broken(error):
    def run(*arguments):
        raise error

    return run


def test_memory_that_is_exhausted(run, monkeypatch):
    monkeypatch.setattr(check, "Checker", broken(MemoryError()))
    status, _, errors = run("check")
    assert status == 2
    assert errors == "python -m sgemm check: out of memory\n"


@pytest.mark.parametrize(
    ("command", "owner", "what"),
    [("check", check, "Checker"), ("inspect", inspection, "inspect")],
)
def test_what_is_interrupted_ends_without_a_word(run, monkeypatch, command, owner, what):
    monkeypatch.setattr(owner, what, broken(KeyboardInterrupt()))
    assert run(command) == (130, "", "")


def test_what_was_printed_before_an_interrupt_stays():
    """With output that is no terminal, which Python keeps in a buffer."""
    result = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "seen\n", "")


def test_versions(run):
    status, output, _ = run("versions", "--json")
    assert status == 0
    rows = document(output, "versions")["rows"]
    assert [row["name"] for row in rows] == list(LADDER)
    assert rows[0]["b_layout"] == "column"
    assert rows[0]["article_gflops"] == 800

    status, output, _ = run("versions")
    assert status == 0
    for version in LADDER.values():
        assert version.title in output
        assert version.change in output


def test_check_finds_every_version_right(run):
    status, output, errors = run("check", "--json")
    assert status == 0
    assert errors == ""
    rows = document(output, "check")["rows"]
    cases = {(row["m"], row["n"], row["k"], row["case"]) for row in rows}
    assert {row["version"] for row in rows} == set(LADDER)
    assert len(rows) == len(LADDER) * len(cases)
    assert {(1, 1, 1, ""), (35, 79, 19, ""), (129, 130, 131, "")} <= cases
    for row in rows:
        assert row["where"] == "simulator"
        assert row["verdict"] == "right"
        assert row["exact"] is True
        assert 0 <= row["error_over_bound"] <= 1
        assert 0 <= row["relative_error"] <= 1e-4
        assert row["within_article_limit"] is True


def test_check_chooses_versions_and_shapes(run):
    status, output, _ = run(
        *("check", "--json", "--seed", 7, "--version", "v2", "--version", "v0"),
        *("--source", TEMPLATE, "--shape", "5x6x7", "8x4x2"),
    )
    assert status == 0
    rows = document(output, "check")["rows"]
    assert [(row["version"], row["m"], row["n"], row["k"]) for row in rows] == [
        (version, *shape)
        for version in ("v2", "v0", "template.cu")
        for shape in ((5, 6, 7), (8, 4, 2))
    ]


@pytest.mark.case("3.8")
def test_a_cuda_header_that_is_not_there_is_named_with_the_repair(run, tmp_path):
    source = tmp_path / "own.cu"
    source.write_text(Path(TEMPLATE).read_text() + "#include <vector_types.h>\n")
    status, output, error = run("inspect", "--source", source, "--arch", "sm_90")
    assert (status, output) == (2, "")
    assert error.count("\n") == 1
    assert "vector_types.h" in error
    assert str(causes.HEADER_NOT_FOUND) in error


def test_kernels_of_one_name_are_told_apart(run, tmp_path):
    sources = [tmp_path / "first" / "own.cu", tmp_path / "second" / "own.cu", tmp_path / "v0"]
    for source in sources:
        source.parent.mkdir(exist_ok=True)
        shutil.copy(TEMPLATE, source)
    arguments = [argument for source in (*sources, TEMPLATE) for argument in ("--source", source)]
    status, output, _ = run("check", "--json", "--shape", "5x6x7", *arguments)
    assert status == 0
    names = [row["version"] for row in document(output, "check")["rows"]]
    assert names == [*map(str, sources), "template.cu"]


def test_check_prints_both_figures_and_the_place(run):
    status, output, _ = run("check", "--version", "v1", "--shape", "5x6x7")
    assert status == 0
    (line,) = [line for line in output.splitlines() if "5×6×7" in line]
    assert re.search(r"simulator +\d\S* +\d\S* +exact +right", line)


def test_the_template_is_right_on_every_case(run):
    status, output, _ = run("check", "--source", TEMPLATE, "--json")
    assert status == 0
    assert len(document(output, "check")["rows"]) == len(check.CASES)


def test_the_template_compiles_for_a_gpu():
    compiled = compile(from_file(TEMPLATE))
    assert compiled.spill_bytes == 0


@pytest.mark.parametrize(
    ("kernel", "detail"),
    [
        ("writes_nan", "wrong: .*found nan"),
        ("writes_zeros", "wrong: .*found 0,"),
        ("writes_nothing", "wrong: .*found nan"),
        ("misses_last_row", "wrong: 7 of 35 elements, the first at \\(4, 0\\): found nan"),
        ("reads_c_with_beta_0", "wrong: .*found nan"),
        ("writes_past_the_row", "writes outside C"),
        ("forgets_the_edges", "writes outside C"),
        ("writes_beside_a", "writes to A or beside it"),
        ("rounds_to_tf32", "wrong: .* elements"),
    ],
)
def test_a_wrong_kernel_is_red(run, kernel, detail):
    arguments = ("check", "--source", PLANTED / f"{kernel}.cu", "--shape", "5x7x3")
    status, output, _ = run(*arguments, "--json")
    assert status == 1
    (row,) = document(output, "check")["rows"]
    assert row["verdict"] == "wrong"
    assert re.search(detail, row["detail"])
    if "found nan" in detail:
        assert row["error_over_bound"] is None  # infinite
        assert row["relative_error"] is None
        assert row["within_article_limit"] is False

    status, output, _ = run(*arguments)
    assert status == 1
    assert " wrong" in output


def test_a_dropped_term_that_the_bound_cannot_see_is_red(run):
    source = PLANTED / "drops_last_term.cu"
    status, output, _ = run("check", "--source", source, "--shape", "3x3x16384", "--json")
    assert status == 1
    (row,) = document(output, "check")["rows"]
    assert row["error_over_bound"] <= 1
    assert row["exact"] is False
    assert "integers is not exact" in row["detail"]


def test_a_kernel_that_fails_while_it_runs_is_red(run, tmp_path):
    source = tmp_path / "one_waits.cu"
    source.write_text(
        TEMPLATE.read_text().replace(
            "float sum", "if (threadIdx.x == 0) __syncthreads();\nfloat sum"
        )
    )
    status, output, _ = run("check", "--source", source, "--shape", "8x32x4", "--json")
    assert status == 1
    (row,) = document(output, "check")["rows"]
    assert row["verdict"] == "wrong"
    assert "barrier" in row["detail"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--version", "v99"], "no 'v99'"),
        (["--shape", "12"], "--shape: '12'.*MxNxK"),
        (["--shape", "0x1x1"], "--shape: '0x1x1'.*positive"),
        (["--shape", "3x3x99999999"], "K can be checked up to"),
        (["--shape", "100000x100000x1000"], "SGEMM_SIMULATOR_LIMIT"),
        (["--seed", "-1"], "--seed: '-1'"),
        (["--seed", "9" * 5000], "--seed: '9{1,20}\\.\\.\\.9{1,20}' is not"),
        (["--source", "none.cu"], "none.cu: cannot be read"),
        (["--unknown"], "--unknown"),
    ],
)
def test_bad_arguments_end_with_2_and_one_line(run, arguments, reason):
    status, output, errors = run("check", "--version", "v1", *arguments)
    assert status == 2
    assert output == ""
    assert re.fullmatch(f"python -m sgemm.*{reason}.*\n", errors)


def test_no_command_ends_with_2(run):
    status, _, errors = run()
    assert status == 2
    assert errors.count("\n") == 1


def test_a_source_that_does_not_compile_ends_with_2_and_one_line(run, tmp_path):
    source = tmp_path / "broken.cu"
    source.write_text(TEMPLATE.read_text().replace("float sum = 0.0f", "float sum = nothing"))
    status, output, errors = run("check", "--source", source)
    assert status == 2
    assert output == ""
    assert re.fullmatch(".*broken.cu does not compile.*nothing.*\n", errors)


@pytest.mark.parametrize("command", ["check", "doctor"])
def test_a_gpu_that_is_required_and_missing_ends_with_2(run, monkeypatch, command):
    monkeypatch.setenv("SGEMM_REQUIRE_GPU", "1")
    status, _, errors = run(command)
    assert status == 2
    assert re.fullmatch(f"python -m sgemm {command}: SGEMM_REQUIRE_GPU=1.*\n", errors)


def test_doctor_without_a_gpu_ends_with_1(run):
    status, output, errors = run("doctor", "--json")
    assert status == 1
    assert errors == ""
    rows = {row["name"]: row for row in document(output, "doctor")["rows"]}
    assert rows["GPU"]["verdict"] == "absent"
    assert rows["Python"]["verdict"] == "ok"

    status, output, _ = run("doctor")
    assert status == 1
    assert "nvidia-smi" in output
    assert "nvcc -V" in output


@pytest.mark.gpu
def test_check_runs_on_the_gpu(capsys):
    assert main(["check", "--json"]) == 0
    found = document(capsys.readouterr().out, "check")
    assert {row["where"] for row in found["rows"]} == {"gpu"}
    assert found["environment"]["gpus"]
    assert found["environment"]["cupy"]


@pytest.mark.gpu
def test_doctor_on_a_gpu_machine(capsys):
    assert main(["doctor"]) == 0
    assert "compute capability" in capsys.readouterr().out


def test_a_header_gives_the_geometry(tmp_path):
    source = tmp_path / "own.cu"
    source.write_text(
        "#include <x>\n  //sgemm: TILE_M=64 TILE_N=32 TILE_K=16 THREADS=128 MICRO_M=4 MICRO_N=2 "
        "BLOCKS_PER_SM=3 STAGES=2 SLICES=2 SHARED=50000 B=column FLOAT4=1 CAPABILITY=8.6\n"
    )
    version = from_file(source)
    assert version.name == "own.cu"
    assert version.source == str(source)
    assert version.b_layout == "column"
    assert version.defines(vector=True) == {
        "TILE_M": 64,
        "TILE_N": 32,
        "TILE_K": 16,
        "MICRO_M": 4,
        "MICRO_N": 2,
        "THREADS": 128,
        "BLOCKS_PER_SM": 3,
        "STAGES": 2,
        "SLICES": 2,
        "DYNAMIC_SHARED_BYTES": 50000,
        "VECTOR": 1,
    }
    assert version.dynamic_shared_bytes == 50000
    assert version.min_compute_capability == (8, 6)


def test_what_a_header_leaves_out(tmp_path):
    source = tmp_path / "own.cu"
    source.write_text(GOOD_HEADER)
    version = from_file(source)
    assert version.tile == (8, 32, 1)
    assert version.micro_tile == (1, 1)
    assert version.b_layout == "row"
    assert version.defines(vector=True)["VECTOR"] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "own.cu: no header line; expected one such as: // sgemm: TILE_M"),
        (f"{GOOD_HEADER}\n\n{GOOD_HEADER}", "own.cu:3: a second header line; the first is line 1"),
        ("\n// sgemm: TILE_M=8 THREADS=8", "own.cu:2: TILE_N missing"),
        (f"{GOOD_HEADER} WIDTH=3", "own.cu:1: 'WIDTH=3': expected KEY=value"),
        (f"{GOOD_HEADER} B", "own.cu:1: 'B': expected KEY=value"),
        (f"{GOOD_HEADER} B=col", "own.cu:1: B=col: must be row or column"),
        (f"{GOOD_HEADER} FLOAT4=2", "own.cu:1: FLOAT4=2: must be 0 or 1"),
        (f"{GOOD_HEADER} SHARED=-4", "own.cu:1: SHARED=-4: must be a positive integer"),
        (
            f"{GOOD_HEADER} CAPABILITY=90",
            "own.cu:1: CAPABILITY=90: must be a compute capability such as 9.0",
        ),
        (f"{GOOD_HEADER} TILE_K=0", "own.cu:1: TILE_K=0: must be a positive integer"),
        (f"{GOOD_HEADER} TILE_K=x", "own.cu:1: TILE_K=x: must be a positive integer"),
        (f"{GOOD_HEADER} TILE_M=4", "own.cu:1: TILE_M is given twice"),
        (GOOD_HEADER.replace("256", "2048"), "own.cu:1: THREADS=2048: .*at most 1024"),
    ],
)
def test_a_bad_header_is_named_with_its_line_and_rule(tmp_path, text, message):
    source = tmp_path / "own.cu"
    source.write_text(text)
    with pytest.raises(ArgumentError, match=message):
        from_file(source)


def test_a_file_that_is_not_text(tmp_path):
    source = tmp_path / "own.cu"
    source.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ArgumentError, match=r"own\.cu: cannot be read"):
        from_file(source)


def test_a_file_that_begins_with_a_byte_order_mark(tmp_path):
    source = tmp_path / "own.cu"
    source.write_text(GOOD_HEADER, encoding="utf-8-sig")
    assert from_file(source).threads == 256


@pytest.mark.parametrize("name", ['a"b.cu', "a\\b.cu", "a\nb.cu", "a\udcffb.cu"])
def test_a_file_name_that_no_include_can_hold(tmp_path, name):
    source = tmp_path / name
    source.write_text(GOOD_HEADER)
    with pytest.raises(ArgumentError, match="a kernel file's name has no double quotes"):
        from_file(source)


def test_an_error_that_is_not_expected_tells_where(run, monkeypatch):
    """And is no verdict about the kernel."""
    monkeypatch.setattr(check, "Checker", broken(KeyError("lost")))
    status, output, errors = run("check")
    assert (status, output) == (2, "")
    assert "in run" in errors
    said = "python -m sgemm check: a fault of sgemm itself: KeyError: 'lost'"
    assert errors.splitlines()[-1] == said


def test_a_package_that_cannot_be_imported_is_told(run, monkeypatch):
    monkeypatch.setattr(check, "Checker", broken(ImportError("libopenblas.so.0: no such file")))
    status, _, errors = run("check")
    assert status == 2
    assert re.fullmatch("python -m sgemm check: .*libopenblas.so.0.*--force-reinstall.*\n", errors)


def test_errors_that_cannot_be_printed_leave_the_status():
    command = f"{sys.executable} -m sgemm check --version nope 2>/dev/full"
    assert subprocess.run(["bash", "-c", command]).returncode == 2


def test_an_argument_of_two_lines_is_refused_on_one(run):
    status, _, errors = run("versions", "--foo\nbar")
    assert (status, errors.count("\n")) == (2, 1)
