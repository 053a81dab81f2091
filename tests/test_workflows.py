"""The GitHub workflows, read as data: who reaches the GPU, what may write, what is pinned; and the
scripts in .ci/ that they run, against a repository and a server of the test's own."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest
import yaml
from asv.results import iter_results_paths

import dev
from benchmarks import gpu, measure, speed

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))
LONGEST_MINUTES = 140
GITHUBS_MACHINE = "ubuntu-24.04"
ON_OUR_MACHINES = {("gpu-machine.yml", "measure"), ("gpu-pull-request.yml", "gate")}
"""Whoever adds a job there adds its tests here."""

TRIGGERS = {"push", "pull_request", "schedule", "workflow_dispatch", "workflow_call"}
"""Not among them: what runs with the right to write on behalf of a fork's code."""

WRITERS = {
    ("gpu.yml", "machine"): {"contents", "pages", "id-token"},  # for the jobs of gpu-machine.yml
    ("gpu-machine.yml", "record"): {"contents"},
    ("gpu-machine.yml", "deploy"): {"pages", "id-token"},
    ("gpu-pull-request.yml", "comment"): {"pull-requests"},
}
PINNED = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def script(name):
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sys.path.append(str(ROOT / ".ci"))  # they share a module
results, comment, waiting = script("results"), script("comment"), script("waiting")


# --- rules ---


def violations(name, text):
    """What a workflow's text breaks of the rules that hold for every job and step."""
    workflow = yaml.safe_load(text)
    triggers = workflow[True]  # YAML 1.1 reads "on" so
    found = [f"trigger {trigger}" for trigger in set(triggers) - TRIGGERS]
    if workflow.get("permissions") not in ({}, {"contents": "read"}):
        found.append("permissions of the whole workflow")
    found += [
        f"not pinned: {line.strip()}"
        for line in text.splitlines()
        if re.match(r"\s*(- )?uses: ", line) and "uses: ./" not in line and not PINNED.search(line)
    ]
    for job_name, job in workflow["jobs"].items():
        found += [f"{job_name}: {broken}" for broken in job_violations(name, job_name, job)]
    return found


def job_violations(name, job_name, job):
    permissions = job.get("permissions", {})
    may_write = {scope for scope, level in permissions.items() if level == "write"}
    if may_write != WRITERS.get((name, job_name), set()):
        yield f"may write {may_write}"
    if "uses" in job:
        return
    if not 0 < job.get("timeout-minutes", 0) <= LONGEST_MINUTES:
        yield "no time limit"
    if is_self_hosted(job):
        if may_write:
            yield "a machine of one's own may write"
        if (name, job_name) not in ON_OUR_MACHINES:
            yield "not on GitHub's machine"
    for step in job["steps"]:
        if "run" in step:
            yield from run_violations(step)
        if "continue-on-error" in {*job, *step}:
            yield "a failure is not red"
        if needs_history(step) and job["steps"][0]["with"].get("fetch-depth") != 0:
            yield "a clone that is cut short"
        action, inputs = step.get("uses", "").partition("@")[0], step.get("with") or {}
        if action == "actions/checkout" and inputs.get("persist-credentials") is not False:
            yield "credentials stay behind"
        if action == "actions/upload-artifact" and inputs.get("overwrite") is not True:
            yield "the job cannot run again: its artifact is there already"


def run_violations(step):
    """A step is one command that can be given anywhere: it takes what GitHub says from variables,
    as text in an expression would become a part of the command."""
    command = step["run"]
    if "${{" in command:
        yield f"an expression in {command!r}"
        return
    words = shlex.split(command)
    for variable in re.findall(r"\$(\w+)", command):
        if f'"${variable}"' not in command or variable not in step.get("env", {}):
            yield f"{variable} in {command!r}"
    numbers = ["1" if word == "$NUMBER" else word for word in words]
    arguments = ["success" if word == "$OUTCOME" else word for word in numbers]
    try:
        match arguments:
            case [".ci/run"]:
                pass
            case ["python3", "dev.py", *rest]:
                dev.parse(rest)
            case ["python3", ".ci/results.py", *rest]:
                results.parse(rest)
            case ["python3", ".ci/comment.py", *rest]:
                comment.parse(rest)
            case ["python3", ".ci/waiting.py", *rest]:
                waiting.parse(rest)
            case ["python3", ".ci/smoke.py", "$CUDA", "$CHOICE"]:
                pass  # tests/test_locks.py tries what the matrix passes
            case _:
                yield f"no command that is tested: {command!r}"
    except SystemExit:
        yield f"arguments of {command!r}"


def needs_history(step):
    """Whether a step's command walks it."""
    walking = r"python3 (dev\.py (site|gate|publish)|\.ci/results\.py)\b"
    return re.match(walking, step.get("run", "")) is not None


def is_self_hosted(job):
    """As far as one can tell: a label alone, which may have any name, asks for such a machine."""
    return job.get("runs-on", GITHUBS_MACHINE) != GITHUBS_MACHINE


@pytest.mark.case("4.7", "4.11", "5.1")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_workflow_keeps_the_rules(file):
    assert violations(file.name, file.read_text()) == []


PLANTED = {
    "a forks' code with rights": ("  pull_request:\n", "  pull_request_target:\n", "trigger"),
    "rights for all": ("contents: read", "contents: write", "permissions of the whole"),
    "a tag in place of a hash": (
        "@08c6903cd8c0fde910a37f88322edcfb5dd907a8 # v5.0.0",
        "@v5",
        "not pinned",
    ),
    "a hash without its version": (" # v5.0.0", "", "not pinned"),
    "no time limit": ("    timeout-minutes: 20\n", "", "no time limit"),
    "credentials": ("          persist-credentials: false\n", "", "credentials"),
    "a failure that nobody sees": (
        "      - run: .ci/run",
        "      - run: .ci/run\n        continue-on-error: true",
        "not red",
    ),
    "a shallow clone": ("          fetch-depth: 0 # asv needs all commits\n", "", "cut short"),
    "an artifact that is there already": ("          overwrite: true", "", "cannot run again"),
    "an expression": ('"$HEAD"', "${{ github.head_ref }}", "an expression"),
    "an unquoted variable": ('"$HEAD"', "$HEAD", "HEAD in"),
    "a variable from elsewhere": ("          HEAD: ", "          TAIL: ", "HEAD in"),
    "shell magic": ("- run: .ci/run", "- run: .ci/run && curl example.org", "no command"),
    "an option that is gone": ("--static", "--statics", "arguments of"),
    "a GPU by its label": ("runs-on: ubuntu-24.04", "runs-on: nvidia-h200", "not on GitHub's"),
    "a GPU by its group": (
        "runs-on: ubuntu-24.04",
        "runs-on: {group: gpus, labels: [self-hosted, nvidia-h200]}",
        "not on GitHub's",
    ),
    "a GPU by a matrix": (
        "runs-on: ubuntu-24.04",
        'runs-on: "${{ matrix.machine }}"',
        "not on GitHub's",
    ),
}


CASES = {
    "a forks' code with rights": pytest.mark.case("5.1"),
    "a failure that nobody sees": pytest.mark.case("4.11", "4.13"),
    "a shallow clone": pytest.mark.case("4.7"),
}


@pytest.mark.parametrize(
    "mistake", [pytest.param(mistake, marks=CASES.get(mistake, ())) for mistake in PLANTED]
)
def test_a_planted_mistake_is_found(mistake):
    old, new, expected = PLANTED[mistake]
    text = (FOLDER / "cpu.yml").read_text()
    assert old in text
    found = violations("cpu.yml", text.replace(old, new))
    assert any(expected in violation for violation in found), found


def test_each_action_has_one_version():
    pins = {
        line.partition("uses: ")[2]
        for file in FILES
        for line in file.read_text().splitlines()
        if "uses: actions/" in line
    }
    assert len({pin.partition("@")[0] for pin in pins}) == len(pins)


@pytest.mark.case("5.5")
def test_every_push_to_main_is_tested():
    group = load("cpu.yml")["concurrency"]["group"].removeprefix("cpu-")
    for event, different in (("push", "sha"), ("pull_request", "ref")):
        github = {"event_name": event, "ref": "a ref", "sha": "a sha"}
        assert evaluate(strip(group), github=github) == github[different]


def test_all_faults_are_planted_for_every_push():
    (*_, step) = load("cpu.yml")["jobs"]["mutants"]["steps"]
    assert step["run"].endswith(" tests/test_mutants.py")
    assert step["env"] == {"SGEMM_MUTANTS": "all"}


# --- who reaches the GPU ---


def load(name):
    return yaml.safe_load((FOLDER / name).read_text())


def self_hosted_jobs():
    return {
        (file.name, name): job
        for file in FILES
        for name, job in load(file.name)["jobs"].items()
        if is_self_hosted(job)
    }


def test_the_jobs_on_machines_of_one_s_own():
    assert set(self_hosted_jobs()) == ON_OUR_MACHINES
    assert set(load("gpu-machine.yml")[True]) == {"workflow_call"}
    callers = {
        file.name
        for file in FILES
        for job in load(file.name)["jobs"].values()
        if job.get("uses") == "./.github/workflows/gpu-machine.yml"
    }
    assert callers == {"gpu.yml"}
    assert set(load("gpu.yml")[True]) == {"push", "schedule", "workflow_dispatch"}
    assert load("gpu.yml")[True]["push"] == {"branches": ["main"]}
    assert load("gpu.yml")["jobs"]["machine"]["if"] == "github.ref == 'refs/heads/main'"


def evaluate(expression, **contexts):
    """The value of a GitHub expression, as far as the workflows use the language; its operators
    give one of their operands, as Python's do."""
    tokens = re.findall(
        r"""\s*('[^']*'|[\w.-]+(?=\()|[\w-]+(?:\.[\w-]+)*|&&|\|\||==|!=|[!(),])""", expression
    )
    assert "".join(tokens) == re.sub(r"\s(?=(?:[^']*'[^']*')*[^']*$)", "", expression)
    python = {"&&": "and", "||": "or", "!": "not", "true": "True", "false": "False"}

    def translate(token):
        if token in python or re.match(r"'|[^\w]", token):
            return python.get(token, token)
        if token in functions:
            return token
        return f"value({token!r})"

    def value(path):
        found = contexts
        for key in path.split("."):
            found = found.get(key) if isinstance(found, dict) else None
        return found

    functions = {
        "contains": lambda where, what: what in (where or ""),
        "fromJSON": json.loads,
        "always": lambda: True,
        "cancelled": lambda: False,
    }
    source = " ".join(translate(token) for token in tokens)
    return eval(source, {"value": value, **functions})


OURS, FORK = "us/sgemm", "them/sgemm"


def pull_request(head, author, action="opened", label=None, body=None, labels=()):
    return {
        "repository": OURS,
        "event": {
            "action": action,
            "label": {"name": label} if label else None,
            "pull_request": {
                "head": {"repo": {"full_name": head}},
                "author_association": author,
                "body": body,
                "labels": [{"name": name} for name in labels],
            },
        },
    }


@pytest.mark.case("5.1")
@pytest.mark.parametrize(
    ("github", "runs"),
    [
        (pull_request(OURS, "MEMBER"), True),
        (pull_request(OURS, "OWNER", "synchronize"), True),
        (pull_request(OURS, "COLLABORATOR", "reopened"), True),
        (pull_request(OURS, "MEMBER", "edited", body="Accept slowdown: exact now"), True),
        (pull_request(OURS, "MEMBER", "edited", body="a typo less"), False),
        (pull_request(OURS, "MEMBER", "edited"), False),
        (pull_request(OURS, "MEMBER", "labeled", "documentation"), False),
        # A bot's branch, which anybody may have written: by label, and only what was there then.
        (pull_request(OURS, "CONTRIBUTOR"), False),
        (pull_request(OURS, "CONTRIBUTOR", "labeled", "gpu"), True),
        (pull_request(OURS, "NONE", "synchronize", labels=["gpu"]), False),
        # A fork, whoever and whatever.
        (pull_request(FORK, "NONE"), False),
        (pull_request(FORK, "OWNER"), False),
        (pull_request(FORK, "MEMBER", "synchronize"), False),
        (pull_request(FORK, "NONE", "labeled", "gpu"), False),
        (pull_request(FORK, "MEMBER", "labeled", "gpu", labels=["gpu"]), False),
        (pull_request(FORK, "MEMBER", "edited", body="Accept slowdown: mine"), False),
        (pull_request(None, "MEMBER"), False),  # of a fork that was deleted
    ],
)
def test_which_pull_requests_reach_the_gpu(github, runs):
    gate = load("gpu-pull-request.yml")["jobs"]["gate"]
    assert evaluate(gate["if"], github=github) is runs


def test_the_label_is_asked_for():
    triggers = load("gpu-pull-request.yml")[True]
    assert set(triggers) == {"pull_request"}
    assert {"labeled", "edited", "synchronize"} < set(triggers["pull_request"]["types"])


@pytest.mark.case("5.6")
@pytest.mark.parametrize(
    ("file", "asked_for"),
    [
        *((name, True) for name in ("kernels/v0.cu", "sgemm/matmul.py", "constraints-cuda12.txt")),
        *((name, True) for name in ("benchmarks/timing.py", "tests/test_gpu.py", "pyproject.toml")),
        *((name, False) for name in ("README.md", "docs/v0.md", "results/benchmarks.json")),
        *((name, False) for name in (".github/workflows/cpu.yml", ".ci/run", "asv_plugins.py")),
    ],
)
def test_a_gpu_is_asked_for_only_by_what_runs_on_one(file, asked_for):
    """Its machine may be off. As no run is made where none is asked for, none may be required."""
    patterns = load("gpu-pull-request.yml")[True]["pull_request"]["paths"]
    assert any(fnmatch(file, pattern) for pattern in patterns) is asked_for


# --- what happens on the GPU ---


@pytest.mark.parametrize("place", self_hosted_jobs(), ids=": ".join)
class TestOnTheGpu:
    @pytest.mark.case("4.16", "5.5")
    def test_one_job_at_a_time_and_none_dropped(self, place):
        job = self_hosted_jobs()[place]
        machine = job["runs-on"][-1]
        assert job["concurrency"] == {
            "group": f"gpu-{machine}",
            "cancel-in-progress": False,
            "queue": "max",
        }

    @pytest.mark.case("5.2", "5.3")
    def test_it_is_checked_before_and_after(self, place):
        steps = self_hosted_jobs()[place]["steps"]
        commands = [step["run"] for step in steps if "run" in step]
        assert commands[0] == commands[-1] == "python3 dev.py gpu"
        *_, last = (step for step in steps if "run" in step)
        assert evaluate(strip(last["if"]), steps={"before": {"outcome": "success"}})
        assert not evaluate(strip(last["if"]), steps={"before": {"outcome": "failure"}})

    def test_it_takes_no_longer_than_its_steps_may(self, place):
        """A job that runs out of time is cancelled, and what it has measured is not uploaded."""
        job = self_hosted_jobs()[place]
        limits = [step["timeout-minutes"] for step in job["steps"] if "run" in step]
        assert job["timeout-minutes"] - sum(limits) >= 10

    @pytest.mark.case("5.4")
    def test_it_leaves_no_files_of_others(self, place):
        """Nor any outside its checkout, which the next one's cleans. What a container writes
        belongs to root."""
        job = self_hosted_jobs()[place]
        assert not {"container", "services"} & set(job)
        actions = {step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step}
        assert actions == {"actions/checkout", "actions/upload-artifact"}  # no container either
        checkout = job["steps"][0]
        assert checkout["uses"].startswith("actions/checkout@")
        assert set(checkout["with"]) == {"fetch-depth", "persist-credentials"}  # so it cleans
        for variable in ("SGEMM_CACHE_DIR", "CUPY_CACHE_DIR"):
            assert job["env"][variable].startswith("${{ github.workspace }}/")

    @pytest.mark.case("5.7")
    def test_no_test_may_be_skipped(self, place):
        job = self_hosted_jobs()[place]
        assert job["env"]["SGEMM_REQUIRE_GPU"] == "1"
        assert "python3 dev.py test --cases" in [step.get("run") for step in job["steps"]]


def strip(expression):
    return re.sub(r"^\$\{\{|\}\}$", "", expression).strip()


def test_both_workflows_know_the_same_fleet():
    fleets = [
        load(file)["jobs"][job]["strategy"]["matrix"]["machine"]
        for file, job in (("gpu.yml", "machine"), ("gpu-pull-request.yml", "gate"))
    ]
    assert fleets[0] == fleets[1]
    labels = yaml.safe_load((ROOT / ".github" / "actionlint.yaml").read_text())
    assert labels["self-hosted-runner"]["labels"] == fleets[0]


@pytest.mark.case("5.3")
@pytest.mark.parametrize(
    ("measured", "checked", "kept"),
    [("success", "success", True), ("failure", "success", True), ("success", "failure", False)],
)
def test_results_of_a_broken_gpu_are_not_kept(measured, checked, kept):
    steps = load("gpu-machine.yml")["jobs"]["measure"]["steps"]
    (upload,) = (step for step in steps if step.get("id") == "results")
    outcomes = {"measure": {"conclusion": measured}, "after": {"outcome": checked}}
    assert evaluate(strip(upload["if"]), steps=outcomes) is kept


@pytest.mark.case("4.13")
@pytest.mark.parametrize(
    ("outcome", "posted"),
    [("success", True), ("failure", True), ("cancelled", True), ("skipped", False)],
)
def test_the_comment_is_posted_when_the_gate_fails_too(outcome, posted):
    jobs = load("gpu-pull-request.yml")["jobs"]
    *_, upload = jobs["gate"]["steps"]
    assert upload["with"]["path"] == "gate.md"
    assert evaluate(strip(upload["if"]))  # whatever the steps before have come to
    job = jobs["comment"]
    assert job["needs"] == "gate"
    assert evaluate(strip(job["if"]), needs={"gate": {"result": outcome}}) is posted


def test_the_comment_is_written_by_main_s_own_script():
    """It may write to the repository, so no code of the pull request runs beside it."""
    checkout = load("gpu-pull-request.yml")["jobs"]["comment"]["steps"][0]
    assert checkout["with"]["ref"] == "${{ github.event.pull_request.base.sha }}"


@pytest.mark.case("4.2")
def test_the_site_has_all_of_main():
    """Of the commit that a run began with, as the jobs of a slow machine are late, asv would leave
    out what others have measured since."""
    jobs = load("gpu-machine.yml")["jobs"]
    assert jobs["site"]["steps"][0]["with"]["ref"] == "main"
    (upload,) = (s for s in jobs["site"]["steps"] if "upload-pages" in s.get("uses", ""))
    assert jobs["site"]["outputs"] == {"artifact": upload["with"]["name"]}
    deployed = jobs["deploy"]["steps"][0]["with"]["artifact_name"]
    assert deployed == "${{ needs.site.outputs.artifact }}"


# --- .ci/results.py ---


def git(folder, *arguments):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    command = ["git", *identity, *arguments]
    finished = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return finished.stdout.strip()


def write(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))


@pytest.fixture
def checkout(tmp_path):
    """A clone of a project whose main has results of an H200, and ignores those of others."""
    origin, checkout = tmp_path / "origin", tmp_path / "checkout"
    git(tmp_path, "init", "--bare", "--initial-branch=main", str(origin))
    git(tmp_path, "clone", str(origin), str(checkout))
    (checkout / ".gitignore").write_text("/results/*\n!/results/benchmarks.json\n!/results/h200/\n")
    (checkout / ".gitattributes").write_text((ROOT / ".gitattributes").read_text())
    write(checkout / "results" / "benchmarks.json", {"version": 2})
    write(checkout / "results" / "h200" / "aaaaaaaa-env.json", {"gflops": 1})
    git(checkout, "add", ".")
    git(checkout, "commit", "--message", "first")
    git(checkout, "push", "origin", "HEAD:main")
    return checkout


def measured(folder, machine, **commits):
    """A folder with what a machine measured, as its artifact has it."""
    write(folder / "results" / "benchmarks.json", {"version": 2})
    write(folder / "results" / machine / "machine.json", {"machine": machine, "version": 1})
    for commit, content in commits.items():
        write(folder / "results" / machine / f"{commit}-env.json", content)
    return folder


def test_results_of_a_fleet_come_together(checkout, tmp_path):
    results.record(checkout, "a100", measured(tmp_path / "1", "a100", bbbbbbbb={"gflops": 2}))
    results.record(checkout, "h200", measured(tmp_path / "2", "h200", bbbbbbbb={"gflops": 3}))
    assert not (checkout / "results" / "a100").exists()
    results.fetch(checkout)
    found = {
        str(file.relative_to(checkout / "results"))
        for file in (checkout / "results").glob("*/*-env.json")
    }
    assert found == {"a100/bbbbbbbb-env.json", "h200/aaaaaaaa-env.json", "h200/bbbbbbbb-env.json"}
    assert git(checkout, "worktree", "list").count("\n") == 0


def test_the_branch_merges_into_main_and_changes_results_alone(checkout, tmp_path):
    results.record(checkout, "h200", measured(tmp_path / "1", "h200", bbbbbbbb={"gflops": 3}))
    (checkout / "kernel.cu").write_text("second")
    git(checkout, "add", ".")
    git(checkout, "commit", "--message", "second")
    git(checkout, "push", "origin", "HEAD:main")
    results.record(checkout, "h200", measured(tmp_path / "2", "h200", cccccccc={"gflops": 4}))
    git(checkout, "fetch", "origin")
    git(checkout, "merge", "--no-edit", "origin/results")
    changed = git(checkout, "diff", "--name-only", "origin/main").splitlines()
    assert changed == [
        "results/h200/bbbbbbbb-env.json",
        "results/h200/cccccccc-env.json",
        "results/h200/machine.json",
    ]


def test_of_two_measurements_of_a_commit_the_later_is_kept_whole(checkout, tmp_path):
    """Line by line they would be merged into one that nobody measured."""
    lines = dict.fromkeys("abcdefghij", 1)
    file = checkout / "results" / "h200" / "bbbbbbbb-env.json"
    results.record(checkout, "h200", measured(tmp_path / "1", "h200", bbbbbbbb=lines | {"a": 2}))
    write(file, lines | {"j": 3})  # somebody commits to main by hand
    git(checkout, "add", ".")
    git(checkout, "commit", "--message", "by hand")
    git(checkout, "push", "origin", "HEAD:main")
    results.fetch(checkout)
    assert json.loads(file.read_text()) == lines | {"a": 2}


def test_another_machine_may_push_in_between(checkout, tmp_path, monkeypatch):
    merged, others = results.merged, ["a100"]

    @contextmanager
    def racing(folder):
        with merged(folder) as tree:
            while others:
                other = tmp_path / "other"
                git(tmp_path, "clone", str(tmp_path / "origin"), str(other))
                write(other / "results" / others.pop() / "bbbbbbbb-env.json", {})
                git(other, "add", "--force", "results")
                git(other, "commit", "--message", "in between")
                git(other, "push", "origin", "HEAD:results")
            yield tree

    monkeypatch.setattr(results, "merged", racing)
    results.record(checkout, "h200", measured(tmp_path / "1", "h200", bbbbbbbb={}))
    git(checkout, "fetch", "origin")
    names = git(checkout, "ls-tree", "-r", "--name-only", "origin/results").splitlines()
    assert {"results/a100/bbbbbbbb-env.json", "results/h200/bbbbbbbb-env.json"} <= set(names)


def test_accepted_slowdowns_are_remembered_once(checkout, tmp_path):
    for number, machine, lines in ((1, "h200", "1\n"), (2, "a100", "2\n"), (3, "h200", "1\n3\n")):
        folder = measured(tmp_path / str(number), machine)
        (folder / "results" / "accepted.jsonl").write_text(lines)
        results.record(checkout, machine, folder)
    results.record(checkout, "h200", measured(tmp_path / "4", "h200"))  # which accepted nothing
    results.fetch(checkout)
    assert (checkout / "results" / "accepted.jsonl").read_text() == "1\n2\n3\n"


def test_an_accepted_slowdown_that_was_cut_short_is_refused(checkout, tmp_path):
    """The site would not be made any more."""
    folder = measured(tmp_path / "1", "h200", bbbbbbbb={})
    (folder / "results" / "accepted.jsonl").write_text('{"reason": "exact now"}\n{"reas')
    with pytest.raises(results.ResultsError, match=r"accepted.jsonl is no file of accepted slow"):
        results.record(checkout, "h200", folder)
    assert git(checkout, "ls-remote", "origin", results.BRANCH) == ""


def test_the_state_of_the_gpu_is_kept_beside_the_results(checkout, tmp_path, monkeypatch):
    """That of a commit, in a file that asv does not take for results."""
    folder = measured(tmp_path / "1", "h200", bbbbbbbb={})
    reading = {"sm_mhz": 1980, "throttled": ["power cap"], "celsius": 61}
    measurements = {"v0": {"16x16x16": {"seconds": [1.0], "readings": [reading]}}}
    monkeypatch.setattr(gpu, "find", lambda: gpu.Gpu("", "", (9, 0), "13.0"))
    monkeypatch.setattr(measure, "run", lambda: measurements)
    monkeypatch.setenv("ASV_CONF_DIR", str(folder))
    for commit in ("b" * 40, "existing"):
        monkeypatch.setenv("ASV_COMMIT", commit)
        speed.Speed().setup_cache()
    results.record(checkout, "h200", folder)
    results.fetch(checkout)
    recorded = checkout / "results" / "h200"
    (kept,) = recorded.glob("*.jsonl")
    assert kept.name == f"{'b' * 40}.jsonl"
    (line,) = kept.read_text().splitlines()
    assert json.loads(line) == measurements
    taken = {name for _, name, _ in iter_results_paths(str(checkout / "results"))}
    assert taken == {"aaaaaaaa-env.json", "bbbbbbbb-env.json"}


def test_the_artifact_has_what_is_recorded():
    """In the folders of the checkout, as they share no other: the action leaves out what all have
    in common, and what is hidden unless told otherwise."""
    steps = load("gpu-machine.yml")["jobs"]["measure"]["steps"]
    (upload,) = (step for step in steps if step.get("id") == "results")
    assert upload["with"]["path"].split("\n")[:-1] == [
        "results/benchmarks.json",
        "results/accepted.jsonl",
        "results/${{ inputs.machine }}",
        ".asv/measurements",
    ]
    assert upload["with"]["include-hidden-files"] is True


def test_a_push_that_never_succeeds_is_an_error(checkout, tmp_path):
    hook = tmp_path / "origin" / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(results.ResultsError, match="git push failed"):
        results.record(checkout, "h200", measured(tmp_path / "1", "h200", bbbbbbbb={}))


@pytest.mark.parametrize("machine", ["../h200", "--force", "", "a/b"])
def test_a_name_that_is_none_is_refused(checkout, tmp_path, machine):
    with pytest.raises(results.ResultsError, match="no name"):
        results.record(checkout, machine, tmp_path)


def test_files_of_another_machine_or_kind_are_refused(checkout, tmp_path):
    folder = measured(tmp_path / "1", "h200", bbbbbbbb={})
    write(folder / "results" / "h200" / "machine.json", {"machine": "a100"})
    with pytest.raises(results.ResultsError, match="is of a100"):
        results.record(checkout, "h200", folder)
    (folder / "results" / "h200" / "bbbbbbbb-env.json").write_text('{"cut')
    with pytest.raises(results.ResultsError, match="no file of results"):
        results.record(checkout, "h200", folder)


# --- .ci/comment.py ---


@pytest.fixture
def github(monkeypatch):
    """A server in place of GitHub, with the comments of its pull requests, and its runs' jobs."""
    comments, jobs = {}, {}

    class Handler(BaseHTTPRequestHandler):
        def answer(self, content):
            assert self.headers["Authorization"] == "Bearer secret"
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def content(self):
            return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

        def do_GET(self):
            path, _, query = self.path.partition("?")
            actions = "/repos/us/sgemm/actions/runs"
            if path.startswith(actions):
                self.answer(runs(path.removeprefix(actions), parse_qs(query)))
                return
            assert path == "/repos/us/sgemm/issues/7/comments"
            assert query.startswith("per_page=100&page=")
            start = 100 * (int(query.rpartition("=")[2]) - 1)
            self.answer(list(comments.values())[start : start + 100])

        def do_POST(self):
            assert self.path == "/repos/us/sgemm/issues/7/comments"
            add(self.content()["body"])
            self.answer({})

        def do_PATCH(self):
            number = int(self.path.removeprefix("/repos/us/sgemm/issues/comments/"))
            comments[number]["body"] = self.content()["body"]
            self.answer({})

        def log_message(self, *arguments):
            pass

    def runs(path, query):
        if not path:
            (status,) = query["status"]
            return {
                "workflow_runs": [
                    {"id": number}
                    for number, listed in jobs.items()
                    if any(job["status"] == status for job in listed)
                ]
            }
        return {"jobs": jobs[int(re.fullmatch(r"/(\d+)/jobs", path)[1])]}

    def add(body, author="Bot"):
        comments[len(comments)] = {"id": len(comments), "body": body, "user": {"type": author}}

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("GITHUB_API_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("GITHUB_REPOSITORY", "us/sgemm")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://github.example")
    monkeypatch.setenv("GITHUB_RUN_ID", "42")
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    yield SimpleNamespace(comments=comments, add=add, jobs=jobs)
    server.shutdown()
    server.server_close()


def post(monkeypatch, folder, outcome):
    monkeypatch.setattr(comment.sys, "argv", ["comment.py", "7", outcome, str(folder)])
    return comment.main()


def test_one_comment_has_every_machine_s_report(github, monkeypatch, tmp_path):
    for machine in ("a100", "h200"):
        (tmp_path / f"gate-{machine}").mkdir()
        (tmp_path / f"gate-{machine}" / "gate.md").write_text(f"{machine}: v4 is 3 % slower")
    github.add("Well done!", author="User")
    github.add(comment.MARKER + " quoted by somebody", author="User")
    assert post(monkeypatch, tmp_path, "failure") == 0
    assert len(github.comments) == 3
    text = github.comments[2]["body"]
    assert text.startswith(comment.MARKER)
    assert "**Speed: failure**" in text
    assert "https://github.example/us/sgemm/actions/runs/42" in text
    assert text.index("a100: v4") < text.index("h200: v4")


def test_the_next_run_updates_the_comment(github, monkeypatch, tmp_path):
    for i in range(150):
        github.add(f"comment {i}", author="User")
    assert post(monkeypatch, tmp_path, "failure") == 0
    (tmp_path / "gate.md").write_text("all the same")
    assert post(monkeypatch, tmp_path, "success") == 0
    assert len(github.comments) == 151
    assert "all the same" in github.comments[150]["body"]


def test_a_gate_without_a_report_is_named(github, monkeypatch, tmp_path):
    assert post(monkeypatch, tmp_path / "missing", "failure") == 0
    assert "No speed was measured" in github.comments[0]["body"]


def test_a_long_report_is_cut(github, monkeypatch, tmp_path):
    (tmp_path / "gate.md").write_text("x" * 100_000)
    assert post(monkeypatch, tmp_path, "success") == 0
    assert len(github.comments[0]["body"]) < 65_536
    assert github.comments[0]["body"].endswith("(cut here: the run has it all)")


def test_a_comment_that_cannot_be_written_is_red(github, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("GITHUB_API_URL", "http://127.0.0.1:1")
    assert post(monkeypatch, tmp_path, "success") == 1
    assert "could not be written" in capsys.readouterr().err


# --- .ci/waiting.py ---


def job(status, minutes, *labels):
    """One that was asked for so many minutes ago."""
    return {
        "name": f"{labels[-1]}, {status}",
        "status": status,
        "created_at": f"{datetime.now(UTC) - timedelta(minutes=minutes):%Y-%m-%dT%H:%M:%SZ}",
        "labels": list(labels),
        "html_url": "https://github.example/job",
    }


OWN = ("self-hosted", "linux", "x64")


@pytest.mark.case("5.6")
@pytest.mark.parametrize(
    ("jobs", "forsaken"),
    [
        ({}, []),
        ({1: [job("queued", 90, *OWN, "h200")]}, ["h200, queued"]),
        ({1: [job("queued", 30, *OWN, "h200")]}, []),
        # Another job has the machine, or another machine one.
        ({1: [job("queued", 90, *OWN, "h200")], 2: [job("in_progress", 95, *OWN, "h200")]}, []),
        (
            {1: [job("pending", 90, *OWN, "h200"), job("in_progress", 95, *OWN, "a100")]},
            ["h200, pending"],
        ),
        ({1: [job("completed", 95, *OWN, "h200"), job("in_progress", 1, *OWN, "h200")]}, []),
        ({1: [job("queued", 90, "ubuntu-24.04")]}, []),  # GitHub's own
    ],
)
def test_a_job_that_no_machine_takes_is_red(github, monkeypatch, capsys, jobs, forsaken):
    github.jobs.update(jobs)
    monkeypatch.setattr(waiting.sys, "argv", ["waiting.py", "60"])
    assert waiting.main() == bool(forsaken)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(forsaken)
    for line, name in zip(lines, forsaken, strict=True):
        assert line.startswith(f"::error title=No runner::{name} waits since ")
        assert "self-hosted, linux, x64, h200" in line


def test_an_answer_that_does_not_come_is_red(github, monkeypatch, capsys):
    monkeypatch.setattr(waiting.sys, "argv", ["waiting.py", "60"])
    monkeypatch.setenv("GITHUB_API_URL", "http://127.0.0.1:1")
    assert waiting.main() == 1
    assert "GitHub does not say" in capsys.readouterr().err


@pytest.mark.case("5.6")
def test_jobs_that_wait_are_looked_for_where_no_gpu_is_needed():
    workflow = load("runners.yml")
    assert workflow[True]["schedule"]
    (job,) = workflow["jobs"].values()
    assert not is_self_hosted(job)
    assert job["permissions"] == {"contents": "read", "actions": "read"}
    assert job["steps"][-1]["run"] == "python3 .ci/waiting.py 60"
