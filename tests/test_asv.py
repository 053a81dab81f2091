"""asv itself, as this project configures it, extends it and calls it: what becomes of commits that
do not build, of benchmarks that fail, and of results that no commit of the history has; and what a
benchmark costs that is skipped."""

import json
import os
import shutil
import subprocess
import sys
from math import prod
from pathlib import Path
from time import monotonic

import pytest
from asv.config import Config
from asv.environment import ExistingEnvironment
from asv.runner import get_spawner, run_benchmark
from asv.util import load_json
from published import AUTHOR, History

import dev
from benchmarks import gpu, measure, speed
from benchmarks.checkout import LADDER

ROOT = Path(__file__).resolve().parent.parent
CONFIGURATION = load_json(str(ROOT / "asv.conf.json"), js_comments=True)
MACHINE = "machine"
TIMED = 40
SECONDS_OF_NOTHING = 60

BORROWING = '''
import os, sysconfig, venv
from pathlib import Path

from asv.environment import Environment

class Borrowing(Environment):
    """Has the packages of the Python that runs asv, so that making it takes no network."""

    tool_name = "borrowing"

    def __init__(self, conf, python, requirements, tagged_env_vars):
        self._python, self._requirements = python, requirements
        super().__init__(conf, python, requirements, tagged_env_vars)

    def _setup(self):
        venv.create(self._path)
        (packages,) = Path(self._path).glob("lib/python*/site-packages")
        (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
        os.symlink("python", Path(self._path, "bin", "pip"))  # asv wants to see one

    def run(self, args, **kwargs):
        return self.run_executable("python", args, **kwargs)
'''

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "made-up"
version = "1"

[tool.setuptools]
packages = []
"""

SUITE = """
class Figures:
    params = ["right", "wrong"]

    def setup_cache(self):
        return 7

    def track_right(self, cache, param):
        return cache

    def track_wrong(self, cache, param):
        if param == "wrong":
            raise ValueError("no such figure")
        return cache

class Cache:
    def setup_cache(self):
        raise ValueError("no such cache")

    def track_cached(self, cache):
        return cache
"""


class Project:
    """A repository that asv builds and measures as it does this one's commits."""

    def __init__(self, folder):
        self.folder = folder
        settings = {
            "project": "made-up",
            "environment_type": "borrowing",
            "benchmark_dir": "suite",  # asv_plugins imports this project's benchmarks/
            "matrix": {},
            "install_command": CONFIGURATION["install_command"][:1],  # the others are for GPUs
            "plugins": [*CONFIGURATION["plugins"], ".borrowing"],
        }
        self.write("asv.conf.json", json.dumps(CONFIGURATION | settings))
        self.write("borrowing.py", BORROWING)
        self.write("suite/__init__.py", "")
        self.write("suite/made_up.py", "def track_right():\n    return 7\n")
        self.write(".gitignore", "__pycache__/\n/.asv/\n/results/\n")
        self.write("pyproject.toml", PYPROJECT)
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit()

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def commit(self):
        """Commit what is there; the hash."""
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "a commit")
        return self.git("rev-parse", "HEAD")

    def git(self, *arguments):
        command = ["git", *AUTHOR, *arguments]
        finished = subprocess.run(
            command, cwd=self.folder, check=True, capture_output=True, text=True
        )
        return finished.stdout.strip()

    def asv_run(self, *arguments):
        return subprocess.run(
            [sys.executable, "-m", "asv", "run", "--machine", MACHINE, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
        )

    def results(self):
        """Commit to benchmark to values."""
        found = {}
        for path in (self.folder / "results" / MACHINE).glob("*-*.json"):
            document = json.loads(path.read_text())
            assert path.name.startswith(document["commit_hash"][:8])
            values = {name: row[0] for name, row in document["results"].items()}
            found[document["commit_hash"]] = values
        return found


@pytest.fixture
def project(tmp_path, monkeypatch):
    """One with a benchmark, which dev.py takes for its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    known = {MACHINE: {"machine": MACHINE}, "version": 1}
    (tmp_path / ".asv-machine.json").write_text(json.dumps(known))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PIP_CONSTRAINT", "")
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.setattr(dev, "ROOT", folder)
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(dev, "install", lambda *requirements: None)
    return Project(folder)


@pytest.mark.case("4.6")
def test_a_machine_is_described_without_asking(project, capfd):
    """By what stays as it is from boot to boot: asv starts a new series when a fact changes."""
    known = Path("~/.asv-machine.json").expanduser()
    known.unlink()
    dev.describe_machine("laptop")
    described = json.loads(known.read_text())["laptop"]
    assert set(described) == {"machine", "os", "arch", "cpu", "num_cpu", "ram"}
    assert described["machine"] == "laptop"
    assert described["os"] == "Linux"
    assert described["ram"].endswith(" GiB")
    assert not any(os.uname().release in fact for fact in described.values())
    assert "questions" not in capfd.readouterr().out


@pytest.mark.case("4.6")
@pytest.mark.parametrize("known", [None, {}, {MACHINE: {"machine": MACHINE, "ram": "64 GiB"}}])
def test_a_machine_with_results_is_described_as_they_say(project, known):
    """On a new machine of that name, or under a new user, its series goes on."""
    facts = {"machine": MACHINE, "os": "Linux", "cpu": "", "ram": "128 GiB"}
    record = project.folder / "results" / MACHINE / "machine.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps(facts | {"version": 1}))
    home = Path("~/.asv-machine.json").expanduser()
    home.unlink()
    if known is not None:
        home.write_text(json.dumps(known | {"laptop": {"machine": "laptop"}, "version": 1}))
    assert dev.site(MACHINE, "HEAD", missing=None) == 0
    assert json.loads(record.read_text()) == facts | {"version": 1}
    (result,) = record.parent.glob("*-*.json")
    params = json.loads(result.read_text())["params"]
    assert {name: params[name] for name in params if name != "python"} == facts
    assert ("laptop" in json.loads(home.read_text())) == (known is not None)


@pytest.mark.case("4.11")
def test_a_benchmark_that_raises_is_red_and_named(project, monkeypatch, capfd):
    """With its cause, also where a log is all that is left; what did not fail is kept."""
    monkeypatch.setenv("CI", "true")
    project.write("suite/made_up.py", SUITE)
    assert dev.site(MACHINE, "HEAD^!", missing=None) not in (0, None)
    output = capfd.readouterr().out
    for name, cause in (
        ("made_up.Figures.track_wrong", "ValueError: no such figure"),
        ("made_up.Cache.track_cached", "ValueError: no such cache"),
    ):
        assert f"{name} " in output
        assert cause in output
    assert "1/2 failed" in output
    (figures,) = project.results().values()
    assert figures == {
        "made_up.Figures.track_right": [7, 7],
        "made_up.Figures.track_wrong": [7, None],
        "made_up.Cache.track_cached": None,
    }


@pytest.mark.case("4.8")
def test_a_commit_that_does_not_build_is_red_and_says_why(project, capfd):
    """In pip's words, alone and among others; these are measured, and it is not tried again."""
    project.write("pyproject.toml", PYPROJECT.replace("build_meta", "no_such_backend"))
    broken = project.commit()
    cause = "No module named 'setuptools.no_such_backend'"
    assert dev.site(MACHINE, "HEAD^!", missing=None) not in (0, None)
    assert cause in capfd.readouterr().out

    project.write("pyproject.toml", PYPROJECT.replace('"1"', '"2"'))
    repaired = project.commit()
    assert dev.site(MACHINE, "HEAD^!", missing=2) not in (0, None)
    assert cause in capfd.readouterr().out
    found = project.results()
    assert found[broken] == {"made_up.track_right": None}
    assert found[repaired] == {"made_up.track_right": [7]}
    assert not {broken, repaired} & set(dev.commits_without_results(MACHINE))


@pytest.mark.case("4.5")
def test_results_of_an_existing_environment_are_kept_or_refused(project):
    """asv by itself would measure, drop what it has measured and say nothing."""
    before = project.results()
    for environment in ("--environment=existing", "--python=same"):
        refused = project.asv_run(environment)
        assert refused.returncode == 1
        assert "--set-commit-hash=$(git rev-parse HEAD)" in refused.stdout
    assert project.asv_run("--environment=existing", "--dry-run").returncode == 0
    assert project.results() == before

    commit = project.git("rev-parse", "HEAD")
    kept = project.asv_run("--environment=existing", f"--set-commit-hash={commit}")
    assert kept.returncode == 0, kept.stdout
    assert project.results() == before | {commit: {"made_up.track_right": [7]}}


@pytest.mark.case("4.5")
def test_what_an_existing_environment_measures_is_kept_whole(monkeypatch, tmp_path):
    """Beside asv's results, though asv does not say of which commit it is."""
    monkeypatch.setattr(gpu, "find", lambda: gpu.Gpu("", "", (9, 0), "13.0"))
    monkeypatch.setattr(measure, "run", lambda: {"v0": {"16x16x16": {"seconds": [1.0]}}})
    monkeypatch.setenv("ASV_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("ASV_COMMIT", raising=False)
    measurements = speed.Speed().setup_cache()
    kept = tmp_path / ".asv" / "measurements" / "existing.json"
    assert json.loads(kept.read_text()) == measurements == measure.run()


@pytest.mark.case("5.4")
def test_a_job_leaves_nothing_that_the_next_one_cannot_remove(project):
    """By what actions/checkout does first; asv's environments have repositories of their own."""
    assert project.asv_run("HEAD^!").returncode == 0
    assert list(project.folder.glob(".asv/env/*/project/.git"))
    project.git("clean", "-ffdx")
    assert project.git("status", "--porcelain", "--ignored") == ""


@pytest.mark.case("4.2", "4.3")
def test_results_that_are_not_published_are_listed(tmp_path):
    """Those of a branch that was squashed into main, and of a commit that a push has removed. On a
    tag they are published, whatever its branch."""
    history = History(tmp_path, ["First", "Second"])
    for branch in ("squashed", "released"):
        history.git("checkout", "--quiet", "-b", branch, "main")
        history.git("commit", "--quiet", "--allow-empty", "-m", branch)
        history.commits.append(history.git("rev-parse", "HEAD").strip())
    history.git("tag", "v1")
    history.git("checkout", "--quiet", "main")
    history.commits.append("0123456789" * 4)
    first, second, squashed, released, removed = history.commits
    history.define("speed.Speed.track_gflops", list(LADDER), ["4096x4096x4096"])
    for commit in range(len(history.commits)):
        history.add(MACHINE, commit, {"speed.Speed.track_gflops": {("v0", "4096x4096x4096"): 1.5}})
    html = history.publish()
    for commit in history.commits:
        missing = commit in (squashed, removed)
        assert (f"Couldn't find {commit[:8]} in branches (HEAD)" in history.output) == missing
    pages = {page.name for page in (html / "ladder").glob(f"{MACHINE}-*.html")}
    assert pages == {f"{MACHINE}-{commit[:12]}.html" for commit in (first, second, released)}
    (graph,) = html.glob("graphs/branch-HEAD/**/speed.Speed.track_gflops.json")
    assert len(json.loads(graph.read_text())) == len(pages)


@pytest.mark.case("4.10")
def test_a_suite_of_nothing_but_na_takes_less_than_a_minute(monkeypatch):
    """Some that are n/a are timed for all that there are: each is in a process of its own, which
    must not import everything anew."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.delenv("SGEMM_REQUIRE_GPU", raising=False)
    suite = load_json("results/benchmarks.json", api_version=2)
    combinations = sum(
        prod(map(len, benchmark["params"])) * benchmark.get("rounds", 1)
        for benchmark in suite.values()
    )
    speeds = suite["speed.Speed.track_gflops"]
    configuration = Config.load()
    environment = ExistingEnvironment(configuration, "same", {}, {})

    start = monotonic()
    spawner = get_spawner(environment, configuration.benchmark_dir, configuration.launch_method)
    try:
        spawner.preimport()
        cache, why = spawner.create_setup_cache(speeds["name"], speeds["timeout"], "{}")
        assert cache, why
        ready = monotonic()
        result = run_benchmark(speeds, spawner, profile=False, selected_idx=range(TIMED), cwd=cache)
        end = monotonic()
    finally:
        spawner.close()
    shutil.rmtree(cache)
    assert result.stderr.count("there is no GPU") == TIMED
    once, each = ready - start, (end - ready) / TIMED
    assert once + combinations * each < SECONDS_OF_NOTHING


@pytest.mark.case("4.9")
def test_no_cuda_is_there_when_asv_s_server_forks():
    """It has imported all of the suite by then. What measures is started anew, see ``child``."""
    script = """
import importlib, pkgutil, sys
import benchmarks
for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
    importlib.import_module(module.name)
foreign = {name.partition(".")[0] for name in sys.modules} & {"cupy", "cuda", "torch", "pynvml"}
assert not foreign, foreign
with open("/proc/self/maps") as maps:
    assert "libcuda" not in maps.read()
"""
    imported = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True
    )
    assert imported.returncode == 0, imported.stderr
