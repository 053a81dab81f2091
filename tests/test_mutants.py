"""Faults that are planted into the project's sources are seen: a sample of them, or all where
SGEMM_MUTANTS is "all" (``mutants.py``)."""

import os
import random
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import faults
import mutants
import pytest
from mutants import Copy, NoVerdictError, every_mutant, without_faults

EVERY = every_mutant()
SAMPLED = 8


def chosen():
    """Others once a source or a fault has changed; the same ones in all processes of a run."""
    if os.environ.get("SGEMM_MUTANTS") == "all":
        return EVERY
    seed = sha256("".join(mutant.text for mutant in EVERY).encode()).hexdigest()
    return random.Random(seed).sample(EVERY, SAMPLED)


@pytest.fixture(scope="session")
def copy(tmp_path_factory):
    return Copy(tmp_path_factory.mktemp("checkout"))


@pytest.mark.parametrize("mutant", chosen(), ids=lambda mutant: mutant.name)
def test_a_fault_is_seen(copy, mutant):
    assert copy.judge(mutant).killer, f"no test sees {mutant.name}: {mutant.source}"


def test_there_are_faults_in_every_kernel_and_in_what_a_speed_rests_on():
    assert len({mutant.text for mutant in EVERY}) == len(EVERY) >= 40
    files = {mutant.file for mutant in EVERY}
    kernels = {f"kernels/{path.name}" for path in (mutants.ROOT / "kernels").glob("*.cu*")}
    assert kernels - files == {f"kernels/{name}" for name in faults.ON_A_GPU_ONLY}
    assert {"sgemm/ladder.py", "sgemm/matrix.py", "sgemm/residual.py"} <= files
    assert {"benchmarks/timing.py", "benchmarks/problems.py", "benchmarks/gate.py"} <= files


# The runner, on a file and tests that take no time


FAULT = next(mutant for mutant in EVERY if mutant.file == "sgemm/ladder.py")
RIGHT = (mutants.ROOT / FAULT.file).read_text()


def test_without_a_fault_the_tests_are_green(copy):
    (right,) = without_faults([FAULT, FAULT])
    assert right.text == RIGHT
    assert copy.judge(right).killer is None


def test_a_fault_is_named_with_the_test_that_sees_it(copy, monkeypatch, capsys):
    monkeypatch.setattr(mutants, "every_mutant", lambda: [FAULT])
    assert mutants.main(["LADDER.PY", "ceil"]) == 0
    printed = capsys.readouterr().out
    assert f"{FAULT.name}\n" in printed
    assert "by tests/test_ladder.py::test_tiles_cover_the_result[v0]\n" in printed
    assert "All 1 faults are seen by a test" in printed
    assert mutants.main(["no such word"]) == 2
    assert (mutants.ROOT / FAULT.file).read_text() == RIGHT, "planted outside a copy"


def test_a_survivor_ends_the_command_with_1(monkeypatch, capsys):
    same = replace(FAULT, text=f"# as before\n{RIGHT}")
    monkeypatch.setattr(mutants, "every_mutant", lambda: [same])
    assert mutants.main([]) == 1
    printed = capsys.readouterr()
    assert "SURVIVES" in printed.out
    assert f"no test sees {FAULT.name}\n" in printed.err


@pytest.mark.parametrize(
    ("mutant", "reason"),
    [
        (replace(FAULT, text="no Python"), "pytest ends with"),
        (replace(FAULT, tests=("tests/no_such_test.py",)), "pytest ends with 4"),
        (replace(FAULT, keyword="no_such_test"), "pytest ends with 5"),
    ],
)
def test_what_no_test_can_judge_is_an_error(copy, mutant, reason):
    with pytest.raises(NoVerdictError, match=reason):
        copy.judge(mutant)


def test_a_kernel_that_does_not_compile_is_an_error(copy):
    barrier = next(mutant for mutant in EVERY if mutant.fault == "a barrier removed")
    with pytest.raises(NoVerdictError, match="does not compile"):
        copy.judge(replace(barrier, text=f"no CUDA\n{barrier.text}"))


def test_tests_that_fail_without_a_fault_judge_nothing(monkeypatch, capsys):
    monkeypatch.setattr(mutants, "every_mutant", lambda: [FAULT])
    monkeypatch.setattr(mutants, "without_faults", lambda chosen: chosen)
    assert mutants.main([]) == 2
    assert "fails without a fault" in capsys.readouterr().err


def test_a_pattern_that_is_not_found_is_an_error(monkeypatch, capsys):
    planted = (("made up", "no such text", ""),)
    made_up = faults.Faults("sgemm/ladder.py", ("test_ladder.py",), planted)
    monkeypatch.setattr(mutants, "PYTHON_FAULTS", (made_up,))
    assert mutants.main(["--list"]) == 2
    assert "sgemm/ladder.py has 'no such text' 0 times" in capsys.readouterr().err
    monkeypatch.undo()
    rule = faults.Rule("made up", "no such text", "")
    monkeypatch.setattr(mutants, "KERNEL_RULES", (rule,))
    assert mutants.main(["--list"]) == 2
    assert "made up" in capsys.readouterr().err


def test_a_crash_is_a_fault_that_is_seen(copy):
    """Of the test that was running."""
    crash = "import os, signal\n        os.kill(os.getpid(), signal.SIGSEGV)\n        return -(-m"
    mutant = replace(FAULT, text=RIGHT.replace("return -(-m", crash))
    assert "test_tiles_cover_the_result[v0] (signal 11)" in copy.judge(mutant).killer


def test_the_list_has_every_line(capsys):
    assert mutants.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(EVERY)
    assert all(Path(line.partition(":")[0]).suffix in (".py", ".cu", ".cuh") for line in lines)
