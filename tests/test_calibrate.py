"""``python -m benchmarks calibrate``: the rates, from samples whose noise is known."""

import fcntl
import json
import os
import re
import subprocess
import sys
from functools import partial
from itertools import combinations
from math import exp, inf, log1p
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as command
from benchmarks import calibrate, document, gpu, turns
from benchmarks.calibrate import Calibration, Rate, Session, judge
from benchmarks.gate import BENCHMARKS
from benchmarks.turns import Failure, Series
from benchmarks.verdict import Samples

pytest_plugins = ["fake_gpu"]

ROOT = Path(__file__).resolve().parent.parent
V4 = calibrate.PLANTED_VERSIONS[-1]
CUBE = "1024x1024x1024"
ENVIRONMENT = {"gpu": "NVIDIA H200", "driver": "580.00"}


def series(random, planted=0.0, between=0.0006, offset=0.0, seconds=1e-3):
    process = random.gauss(0, between) + log1p(planted) + offset
    times = [seconds * exp(process + random.gauss(0, 0.001)) for _ in range(10)]
    return Samples(times, [time * 1e9 for time in times])


def session(processes, benchmarks=((V4, CUBE),), planted=0, **noise):
    random = Random(1)
    found = Session(dict(ENVIRONMENT))
    for benchmark in benchmarks:
        found.recorded[benchmark] = [
            {
                share: series(random, share, **noise)
                for share in (0.0, *(calibrate.SHARES if i < planted else ()))
            }
            for i in range(processes)
        ]
    return found


def judged(*sessions):
    calibration = Calibration()
    for each in sessions:
        judge(each, calibration)
    return calibration


def test_every_two_processes_are_compared_once():
    pairs = list(calibrate._two_pairs(7))
    assert len(pairs) == 7 * 6 / 2
    assert {frozenset(pair) for pair, _ in pairs} == set(map(frozenset, combinations(range(7), 2)))
    for pair, other in pairs:
        assert not {*pair} & {*other}
    bases = [base for (base, _), _ in pairs]
    assert all(2 <= bases.count(i) <= 4 for i in range(7))


@pytest.mark.parametrize(("base", "head"), [(0, 1), (3, 0), (5, 2)])
def test_the_second_pair_shares_no_process(base, head):
    other_base, other_head = calibrate._another(6, [0, 1, 2], base, head)
    assert other_head in (0, 1, 2)
    assert len({base, head, other_base, other_head}) == 4


@pytest.mark.case("4.14")
def test_identical_code_raises_no_alarm():
    calibration = judged(session(26, BENCHMARKS[:10]))
    assert calibration.gates.gate.trials == 325
    assert calibration.gates.gate.hits <= 1
    assert calibration.of(*BENCHMARKS[0], 0.0).gate.trials == 325


@pytest.mark.case("4.14")
def test_planted_slowdowns_are_found():
    calibration = judged(session(8, planted=8))
    rates = [calibration.of(V4, CUBE, share).gate for share in calibrate.SHARES]
    assert [rate.trials for rate in rates] == [56] * 4
    half, one, two, five = (rate.hits / rate.trials for rate in rates)
    assert half >= 0.5
    assert one >= 0.95
    assert two == five == 1


def test_only_slowed_processes_are_heads_of_planted_comparisons():
    calibration = judged(session(6, planted=3))
    assert calibration.of(V4, CUBE, 0.01).gate.trials == 3 * 5


def test_two_processes_need_not_the_rounds_of_all():
    """They are judged by those after which the two alone would have stopped: what comes later,
    because others were not precise yet, changes nothing."""
    found = session(4)
    alone = judged(found).benchmarks
    for process in found.recorded[V4, CUBE]:
        samples = process[0.0]
        process[0.0] = Samples([*samples.seconds, 9.0, 1.0], [*samples.cycles, 1.0, 9.0])
    assert judged(found).benchmarks == alone


def test_asv_misses_what_its_factor_hides():
    calibration = judged(session(8, planted=8))
    five = calibration.of(V4, CUBE, 0.05)
    assert five.asv[1.1].hits == 0
    assert five.gate.hits == five.gate.trials

    slow = session(4)
    slow.recorded[V4, CUBE][3] = {0.0: series(Random(2), 0.2)}
    calibration = judged(slow)
    assert calibration.of(V4, CUBE, 0.0).asv[1.1].hits > 0


def test_one_process_that_differs_is_counted_as_an_alarm_of_the_gate():
    calm, odd = session(6), session(6)
    for benchmark in odd.recorded:
        odd.recorded[benchmark][2:4] = [{0.0: series(Random(3), 0.1)} for _ in range(2)]
    assert judged(calm).gates.gate.hits == 0
    assert judged(odd).gates.gate.hits > 0
    assert judged(calm, odd).gates.gate.trials == 30


def test_a_process_without_samples_leaves_its_comparisons_undecided():
    failed = session(5)
    failed.recorded[V4, CUBE][0] = {}
    calibration = judged(failed)
    assert calibration.of(V4, CUBE, 0.0).undecided.hits >= 4
    assert calibration.gates.undecided.hits >= 4
    assert calibration.gates.gate.hits == 0


def test_rates_have_exact_intervals():
    rate = Rate(hits=1, trials=300).document()
    assert rate["rate"] == pytest.approx(1 / 300)
    assert rate["interval"] == pytest.approx((0.0000844, 0.018431), abs=1e-6)
    assert Rate().document()["interval"] is None


@pytest.fixture
def sampled(monkeypatch):
    """A GPU whose processes take samples of known noise. Gives the benchmarks that were
    ``sampled``, and ``cut_short_after``, after how many of them the run ends."""
    random = Random(5)

    class Process:
        environment = ENVIRONMENT

        def __init__(self, build, planted):
            self.planted = planted

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

    state = SimpleNamespace(sampled=[], cut_short_after=inf)

    def take_turns(processes, version, problem, benchmarks, *, planted):
        if len(state.sampled) == state.cut_short_after:
            raise KeyboardInterrupt
        state.sampled.append((version, problem))
        outcomes = []
        for process in processes:
            shares = (0.0, *(process.planted if planted else ()))
            taken = {share: series(random, share) for share in shares}
            outcomes.append({s: Series(list(x.seconds), list(x.cycles)) for s, x in taken.items()})
        if version == "v0" and problem == CUBE:
            outcomes[0] = Failure("no answer within 60 s")
        return outcomes

    monkeypatch.setattr(gpu, "find", lambda: object())
    monkeypatch.setattr(calibrate, "SamplingProcess", Process)
    monkeypatch.setattr(calibrate, "get_ready", lambda processes: None)
    monkeypatch.setattr(calibrate, "take_turns", take_turns)
    return state


def run(capsys, *arguments):
    status = command.main(["calibrate", *arguments])
    return status, capsys.readouterr()


def test_samples_that_were_kept_give_the_same_rates(sampled, capsys, tmp_path):
    kept = str(tmp_path / "samples.jsonl")
    status, printed = run(capsys, "--processes", "6", "--planted", "4", "--samples", kept, "--json")
    assert status == 0
    live = json.loads(printed.out)
    assert live["schema"] == "benchmarks/calibrate/1"
    assert live["gates"]["slower"]["trials"] == 15
    assert "v0 at 1024x1024x1024: no answer within 60 s" in printed.err

    status, printed = run(capsys, "--from", kept, kept, "--json")
    assert status == 0
    twice = json.loads(printed.out)
    assert twice["gates"]["slower"]["trials"] == 30
    for once, both in zip(live["rows"], twice["rows"], strict=True):
        assert both["slower"]["hits"] == 2 * once["slower"]["hits"]
        assert both["slower"]["trials"] == 2 * once["slower"]["trials"]


ALL = [*calibrate.BENCHMARKS, *calibrate.FURTHER_BENCHMARKS]
SIX = ("--processes", "6", "--planted", "4")


def cut_short(sampled, capsys, kept, benchmarks=20):
    sampled.cut_short_after = len(sampled.sampled) + benchmarks
    status, printed = run(capsys, *SIX, "--samples", str(kept))
    assert status == 130
    assert "Traceback" not in printed.err
    sampled.cut_short_after = inf


@pytest.mark.parametrize("unfinished", ["", '{"version": "v0", "prob'])
def test_a_run_that_was_cut_short_is_continued(sampled, capsys, tmp_path, unfinished):
    """As often as it takes, and no sample is taken twice."""
    kept = tmp_path / "samples.jsonl"
    for _ in range(2):
        cut_short(sampled, capsys, kept)
        with kept.open("a") as file:
            file.write(unfinished)
    status, printed = run(capsys, *SIX, "--samples", str(kept), "--json")
    assert status == 0
    assert sampled.sampled == ALL
    live = json.loads(printed.out)
    (environment,) = live["environment"]
    assert len(environment["continued"]) == 2
    assert live["gates"]["slower"]["trials"] == 15
    assert {row["slower"]["trials"] for row in live["rows"] if not row["share"]} == {15}

    status, printed = run(capsys, "--from", str(kept), "--json")
    assert (status, json.loads(printed.out)) == (0, live)


def test_a_run_that_was_cut_short_before_its_first_line_begins_anew(sampled, capsys, tmp_path):
    kept = tmp_path / "samples.jsonl"
    kept.write_text('{"gpu": "NVI')
    status, _ = run(capsys, *SIX, "--samples", str(kept))
    assert status == 0
    assert calibrate.read(kept).remaining() == []


def test_of_a_run_that_was_cut_short_no_gate_is_whole(sampled, capsys, tmp_path):
    """Its benchmarks count, each as one of so many as the whole run has; the line that it was
    writing does not."""
    kept = tmp_path / "samples.jsonl"
    cut_short(sampled, capsys, kept)
    with kept.open("a") as file:
        file.write('{"version": "v9')
    status, printed = run(capsys, "--from", str(kept), "--json")
    assert status == 0
    rates = json.loads(printed.out)
    assert rates["gates"]["slower"] == {"hits": 0, "trials": 0, "rate": None, "interval": None}
    assert {row["slower"]["trials"] for row in rates["rows"] if not row["share"]} == {15}
    assert calibrate.read(kept).benchmarks == len(BENCHMARKS)


def test_seconds_add_up_over_what_was_continued(sampled, capsys, tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0)

    def monotonic():
        clock.now += 1.5
        return clock.now

    monkeypatch.setattr(calibrate.time, "monotonic", monotonic)
    kept = tmp_path / "samples.jsonl"
    cut_short(sampled, capsys, kept)
    _, printed = run(capsys, *SIX, "--samples", str(kept), "--json")
    assert json.loads(printed.out)["environment"][0]["gpu_seconds"] == round(1.5 * len(ALL))


def test_a_run_is_continued_under_its_own_conditions_only(sampled, capsys, tmp_path, monkeypatch):
    kept = tmp_path / "samples.jsonl"
    cut_short(sampled, capsys, kept)
    before = kept.read_text()
    monkeypatch.setitem(ENVIRONMENT, "driver", "590.00")
    status, printed = run(capsys, "--processes", "8", "--planted", "4", "--samples", str(kept))
    assert status == 2
    assert "cannot be continued here: driver is 590.00, not 580.00; processes is 8, not 6;" in (
        printed.err
    )
    assert kept.read_text() == before


def test_a_complete_run_is_not_sampled_again(sampled, capsys, tmp_path):
    kept = tmp_path / "samples.jsonl"
    run(capsys, *SIX, "--samples", str(kept))
    before = kept.read_text()
    status, printed = run(capsys, *SIX, "--samples", str(kept))
    assert status == 2
    assert "is complete: judge it by --from" in printed.err
    assert kept.read_text() == before
    assert sampled.sampled == ALL


@pytest.mark.parametrize(
    "content",
    [
        "",  # what has no whole line, and does not begin as samples do
        "no newline",
        '{"gpu": "NVIDIA H100", "dri',
        "# A page\n\nof text",
        '{"rows": []}\n',
        '{"gpu": "NVIDIA H200", "driver": "580.00"}\n{"other": 1}\nthe rest',
        '{"gpu": "NVIDIA H200", "driver": "580.00"}\nthe rest',
        "\n",
        "\xff\xfe",
    ],
)
def test_another_file_is_left_as_it_is(sampled, capsys, tmp_path, content):
    kept = tmp_path / "notes"
    kept.write_bytes(content.encode("latin-1"))
    status, printed = run(capsys, *SIX, "--samples", str(kept))
    if not content:  # there is nothing to lose
        assert (status, calibrate.read(kept).remaining()) == (0, [])
        return
    assert status == 2
    assert printed.err.count("\n") == 1
    assert f"{kept} " in printed.err.replace(":", " ")
    assert printed.err.endswith("name another file\n")
    assert kept.read_bytes() == content.encode("latin-1")
    assert sampled.sampled == []


def test_two_runs_do_not_write_to_one_file(sampled, capsys, tmp_path):
    kept = tmp_path / "samples.jsonl"
    cut_short(sampled, capsys, kept)
    with kept.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write('{"version": "v0", "prob')
        file.flush()
        before = kept.read_text()
        status, printed = run(capsys, *SIX, "--samples", str(kept))
        assert status == 2
        assert printed.err == (
            f"python -m benchmarks: --samples: another calibrate is writing to {kept}; wait for "
            "its end, or name another file\n"
        )
        assert kept.read_text() == before
    status, _ = run(capsys, *SIX, "--samples", str(kept))
    assert status == 0
    assert calibrate.read(kept).remaining() == []


def test_a_run_has_its_file_for_itself_until_its_end(sampled, capsys, tmp_path, monkeypatch):
    kept, locked = tmp_path / "samples.jsonl", []
    take_turns = calibrate.take_turns

    def spied(*arguments, **planted):
        with kept.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked.append(True)
        return take_turns(*arguments, **planted)

    monkeypatch.setattr(calibrate, "take_turns", spied)
    status, _ = run(capsys, *SIX, "--samples", str(kept))
    assert (status, len(locked)) == (0, len(ALL))


HEADER = json.dumps(ENVIRONMENT)
TIMES = [[1e-3] * 3, [1e6] * 3]


def line(*processes):
    return json.dumps({"version": "v3", "problem": CUBE, "processes": processes})


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "no line is whole"),
        (["# A page"], "line 1: JSONDecodeError"),
        (["[]"], "line 1: ValueError"),
        (["1"], "line 1: TypeError"),
        (["{}", "{}"], "line 1: ValueError: not where and how it ran"),
        (['{"gpu": 1, "benchmarks": 0}'], "line 1: ValueError: not where and how it ran"),
        ([HEADER, "[1]"], "line 2: TypeError"),
        ([HEADER, "{}"], "line 2: KeyError: 'processes'"),
        ([HEADER, '{"gpu_seconds": "x"}'], "line 2: ValueError"),
        ([HEADER, "[" * 100_000], "line 2: RecursionError"),
        ([HEADER, line(*[{"0.0": TIMES}] * 4), "}"], "line 3: JSONDecodeError"),
        ([HEADER, line(*[{"0.0": TIMES}] * 4), line(*[{}] * 5)], "line 3: .* 5 processes, and 4"),
        ([HEADER, line(*[{"0.0": TIMES}] * 3)], "line 2: .* 4 processes at least, found 3"),
        ([HEADER, line(*[{"0.0": TIMES[:1]}] * 4)], "line 2: TypeError"),
        ([HEADER, line(*[{"x": TIMES}] * 4)], "line 2: ValueError"),
        ([HEADER, line(*[{"0.0": [[1], [1, 1]]}] * 4)], "different numbers of rounds"),
        ([HEADER, line(*[{"0.0": [[], []]}] * 4)], "no positive number"),
        ([HEADER, line(*[{"0.0": [[0], [1]]}] * 4)], "no positive number"),
        ([HEADER, line(*[{"0.0": [[float("nan")], [1]]}] * 4)], "no positive number"),
    ],
)
def test_samples_of_none_cannot_be_judged(capsys, tmp_path, lines, reason):
    kept = tmp_path / "kept"
    kept.write_text("".join(f"{line}\n" for line in lines))
    status, printed = run(capsys, "--from", str(kept))
    assert status == 2
    assert printed.out == ""
    (message,) = printed.err.splitlines()
    start = f"python -m benchmarks: {kept}: no samples of calibrate ("
    assert message.startswith(start)
    assert re.search(rf"{reason}.*\); name another file$", message)


def test_a_run_that_was_cut_short_before_its_first_benchmark_is_not_judged(capsys, tmp_path):
    kept = tmp_path / "kept"
    kept.write_text(f"{HEADER}\n")
    status, printed = run(capsys, "--from", str(kept))
    assert status == 2
    assert printed.err.startswith(
        f"python -m benchmarks: --from: {kept} holds no benchmark yet, its run was cut short"
    )
    assert printed.err.count("\n") == 1


SMALL = "32x32x32"


@pytest.fixture
def on_the_fake_gpu(fake_gpu, monkeypatch):
    """Runs of two benchmarks whose processes are none, but answer here. Gives how many ``answers``
    there are left before a run is cut short."""
    state = SimpleNamespace(answers=inf)
    monitor, cublas = fake_gpu.Monitor(gpu.find()), fake_gpu.Cublas(None)

    class Process:
        environment = ENVIRONMENT

        def __init__(self, build, planted):
            self.planted = planted
            self.answers = turns._Answers(turns.CudaStream(), monitor, cublas, turns.Spin())

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

        def start(self):
            pass

        def wait_until_ready(self):
            pass

        def tell(self, command, **arguments):
            self.told = partial(getattr(self.answers, command), **arguments)

        def answer(self, timeout):
            if state.answers == 0:
                raise KeyboardInterrupt
            state.answers -= 1
            return self.told()

    spin = staticmethod(lambda grid, block, args: None)
    monkeypatch.setattr(fake_gpu.cupy.RawModule, "spin", spin, raising=False)
    monkeypatch.setattr(turns.Operands, "floats", lambda problem: problem.m * problem.k * 2)
    monkeypatch.setattr(turns, "PROBLEMS", {SMALL: turns.parse(SMALL)})
    monkeypatch.setattr(turns, "CHECKS", [turns.parse(SMALL)])
    monkeypatch.setattr(turns, "ROUNDS_SECONDS", 0.01)
    monkeypatch.setattr(calibrate, "SamplingProcess", Process)
    monkeypatch.setattr(calibrate, "BENCHMARKS", [("v1", SMALL), (V4, SMALL)])
    monkeypatch.setattr(calibrate, "FURTHER_BENCHMARKS", [])
    monkeypatch.setattr(calibrate, "PLANTED_PROBLEMS", (SMALL,))
    return state


@pytest.mark.parametrize(("name", "why"), [("absent", "No such file"), ("", "Is a directory")])
def test_a_file_that_cannot_be_read_is_named(capsys, tmp_path, name, why):
    status, printed = run(capsys, "--from", str(tmp_path / name))
    assert status == 2
    assert printed.err.startswith(f"python -m benchmarks: --from: {tmp_path / name} cannot be read")
    assert why in printed.err


def test_kernels_are_sampled_and_judged_though_the_run_is_cut_short(
    on_the_fake_gpu, capsys, tmp_path
):
    kept = tmp_path / "samples.jsonl"
    arguments = ("--processes", "4", "--planted", "3", "--samples", str(kept))
    lines = []
    for answers in (0, 30, 30):  # none; v1, and v4 in part; v4 in part
        on_the_fake_gpu.answers = answers
        status, _ = run(capsys, *arguments)
        assert status == 130
        lines.append(len(kept.read_text().splitlines()))
    assert lines == [1, 3, 4]  # where it ran, where it was continued twice, and v1

    on_the_fake_gpu.answers = inf
    status, printed = run(capsys, *arguments, "--json")
    assert status == 0
    rates = json.loads(printed.out)
    assert rates["gates"]["slower"]["trials"] == 6
    trials = {(row["version"], row["share"]): row["slower"]["trials"] for row in rates["rows"]}
    planted = {(V4, share): 3 * 3 for share in calibrate.SHARES}
    assert trials == {("v1", 0.0): 6, (V4, 0.0): 6, **planted}
    session = calibrate.read(kept)
    for process in session.recorded[V4, SMALL]:
        assert all(len(samples.seconds) >= turns.MIN_ROUNDS for samples in process.values())


def test_what_was_kept_on_earlier_days_can_still_be_judged(capsys):
    days = sorted(map(str, (ROOT / "docs" / "calibration").iterdir()))
    status, printed = run(capsys, "--from", *days, "--json")
    assert status == 0
    rates = json.loads(printed.out)
    assert len(rates["environment"]) == len(days)
    assert all(run["benchmarks"] >= 55 and run["gpu_seconds"] for run in rates["environment"])
    assert rates["gates"]["slower"]["trials"] >= 153
    assert rates["gates"]["slower"]["hits"] <= 1
    found = {(row["version"], row["problem"], row["share"]): row["slower"] for row in rates["rows"]}
    for version in calibrate.PLANTED_VERSIONS:
        rate = found[version, "4096x4096x4096", 0.02]
        assert rate["hits"] == rate["trials"] > 0


def test_people_get_a_table(sampled, capsys):
    status, printed = run(capsys, "--processes", "4", "--planted", "4")
    assert status == 0
    assert "NVIDIA H200" in printed.out
    assert "identical code" in printed.out
    assert "12/12 (73.5%–100.0%)" in printed.out  # 5 % is found by every comparison
    assert "…" not in printed.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--processes", "3"], "--processes: 4 at least, found 3"),
        (["--planted", "2"], "--planted: none or 3 at least, found 2"),
    ],
)
def test_too_few_processes_are_refused(capsys, arguments, reason):
    status, printed = run(capsys, *arguments)
    assert status == 2
    assert printed.err == f"python -m benchmarks: {reason}\n"


def test_without_asv_nothing_is_sampled(sampled, capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "asv_runner.statistics", None)
    kept = tmp_path / "samples.jsonl"
    assert command.main(["calibrate", "--samples", str(kept)]) == 2
    assert "asv_runner" in capsys.readouterr().err
    assert not kept.exists()


def test_without_a_gpu_there_is_nothing_to_calibrate(capsys, monkeypatch):
    monkeypatch.setattr(gpu, "find", lambda: None)
    status, printed = run(capsys)
    assert status == 2
    assert "there is no GPU" in printed.err


@pytest.fixture
def output_to(tmp_path):
    """Runs the command on a few samples, with its output to somewhere. Gives bytes."""
    kept = tmp_path / "kept"
    kept.write_text(f"{HEADER}\n{line(*[{'0.0': TIMES}] * 4)}\n")
    command = f"{sys.executable} -m benchmarks calibrate --from {kept}"

    def output_to(redirection, form="", **variables):
        script = redirection.format(f"{command} {form}")
        environment = {**os.environ, **variables}
        return subprocess.run(
            ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True
        )

    return output_to


@pytest.mark.parametrize("form", ["", "--json"])
def test_output_that_nobody_reads_ends_without_a_word(output_to, form):
    found = output_to("(sleep 1; {}; echo $? >&2) | true", form)
    assert found.stderr == b"2\n"


@pytest.mark.parametrize("form", ["", "--json"])
@pytest.mark.parametrize(
    ("redirection", "reason"), [("{} >/dev/full", "No space left"), ("{} >&-", "output is closed")]
)
def test_output_that_cannot_be_written(output_to, form, redirection, reason):
    found = output_to(redirection, form)
    assert found.returncode == 2
    assert re.fullmatch(f"python -m benchmarks: .*{reason}.*\n", found.stderr.decode())


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_output_that_takes_ascii_alone(output_to, variables):
    found = output_to("{}", **variables)
    assert found.returncode == 0, found.stderr
    assert "identical code" in found.stdout.decode("ascii")


def test_json_loses_nothing_on_output_that_takes_ascii_alone(capsys):
    document.print_document({"gpu": "é"})
    output = capsys.readouterr().out
    assert output.isascii()
    assert json.loads(output) == {"gpu": "é"}
