#!/usr/bin/env python3
"""Sets the project up in .venv and runs it. Needs Python 3.11 or newer, git and a C++ compiler.

    python3 dev.py site [--machine NAME] [RANGE]   measure commits, publish the benchmark history
    python3 dev.py test [PYTEST ARGUMENT ...]      run the tests
    python3 dev.py gate [--static] BASE HEAD       is HEAD slower than where it left BASE?
    python3 dev.py publish                         publish the history as it is recorded
    python3 dev.py gpu                             does the GPU work, and is it free?

They use the GPU too where there is one. Packages are those that constraints.txt pins, under a
driver for CUDA 12 constraints-cuda12.txt; set PIP_CONSTRAINT, to nothing if need be, for others.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
MEASURED = ("kernels", "sgemm", "pyproject.toml")  # what asv takes from a commit
ASV_WORDS = ("ALL", "EXISTING", "NEW", "TAGS")  # for commits, beside HASHFILE:PATH
MAX_TEST_PROCESSES = 8
NO_TESTS_SELECTED = 5  # pytest's status, for arguments that select none of these
EXCUSES = (
    "there is a GPU",  # a test of a machine without one
    "needs two GPUs",
    r"needs \d+ GB of free GPU memory",
    "could not import 'torch'",  # it brings a CUDA of its own, which constraints.txt rules out
    "there is no Chromium",  # machines without a GPU have it
)
"""Why a test may be skipped where SGEMM_REQUIRE_GPU=1: what that GPU cannot help."""

ACCEPTING = re.compile(r"^Accept slowdown: *(\S.*?)\s*$", re.MULTILINE | re.IGNORECASE)
"""The line of a pull request's text that gives the reason for a wanted slowdown."""

PRODUCT = """
import cupy
from benchmarks import gpu
gpu.Monitor(gpu.find()).require_alone(own_processes=0)
a = cupy.asarray([[1, 2], [3, 4]], cupy.float32)
assert (a @ a).tolist() == [[7, 10], [15, 22]], "the GPU computes a wrong 2x2 product"
"""


class SetupError(Exception):
    """Why this machine cannot do what was asked, and what helps."""


def main() -> int:
    options, others = parse(sys.argv[1:])
    try:
        if sys.version_info < (3, 11):  # noqa: UP036 - said in words, not by a syntax error
            raise SetupError(f"this is Python {platform.python_version()}; 3.11 or newer is needed")
        if options.command == "test":
            return test(others)
        if options.command == "gate":
            text = os.environ.get("PULL_REQUEST_TEXT", "")
            return gate(options.base, options.head, options.static, options.report, text)
        if options.command == "publish":
            return publish()
        if options.command == "gpu":
            return check_gpu()
        return site(options.machine, options.range, options.missing)
    except SetupError as error:
        print(f"dev.py: {error}", file=sys.stderr)
        return 2


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and what goes to pytest; exits with 2 where they are wrong."""
    machine = re.sub(r"[^\w.-]+", "-", platform.node()) or "this-machine"
    parser = argparse.ArgumentParser(
        prog="dev.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    site_parser = commands.add_parser("site", help="measure commits and publish the history")
    site_parser.add_argument("--machine", default=machine, help="default: %(default)s")
    which = site_parser.add_mutually_exclusive_group()
    which.add_argument(
        "range",
        nargs="?",
        default="HEAD",
        help="a commit, a range of them, or a word of asv's such as NEW; default: %(default)s",
    )
    which.add_argument(
        "--missing",
        type=int,
        metavar="N",
        help="measure the newest N commits that changed what is measured and have no results yet",
    )
    commands.add_parser("test", add_help=False, help="run the tests")
    gate_parser = commands.add_parser(
        "gate",
        help="compare HEAD with where it left BASE",
        description=(
            "Compares HEAD with where it left BASE; status 0 not slower, 1 slower, 2 no answer. "
            "A line 'Accept slowdown: REASON' in the environment variable PULL_REQUEST_TEXT "
            "accepts a slowdown."
        ),
    )
    gate_parser.add_argument("--static", action="store_true", help="without a GPU")
    gate_parser.add_argument("--report", metavar="FILE", help="write the verdicts as Markdown")
    gate_parser.add_argument("base", metavar="BASE")
    gate_parser.add_argument("head", metavar="HEAD")
    commands.add_parser("publish", help="publish the recorded history")
    commands.add_parser("gpu", help="check the GPU")
    options, others = parser.parse_known_args(arguments)
    if others and options.command != "test":
        parser.error(f"unknown arguments: {' '.join(others)}")
    return options, others


def site(machine: str, commits: str, missing: int | None) -> int:
    """Measure the commits with asv as ``machine``, and publish the history; asv's exit status.
    With ``missing`` it is that many commits without results, whatever ``commits`` says."""
    require_history()
    require_commits(commits)
    announce("Setting up .venv with asv")
    install("asv")
    describe_machine(machine)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as hashes:
        status = 0
        if missing is not None:
            found = commits_without_results(machine)
            announce(f"{len(found)} commits have no results of {machine}")
            hashes.write("".join(f"{commit}\n" for commit in found[:missing]))
            hashes.flush()
            commits = f"HASHFILE:{hashes.name}" if found else ""
        elif is_commit(commits):
            commits += "^!"  # alone, which asv takes for all of its history
        if commits:
            announce(f"Measuring {commits} as {machine}")
            # Without it asv does not say why a setup_cache failed; a log is all that a CI leaves.
            causes = ["--show-stderr"] if os.environ.get("CI") == "true" else []
            options = ["--record-samples", *causes, "--machine", machine]
            status = run("-m", "asv", "run", *options, commits)
    status = publish() or status
    if status:
        print("dev.py: asv reported failures, see above", file=sys.stderr)
        return status
    announce("This opens the benchmark history:")
    print("    .venv/bin/asv preview --browser")
    return 0


def publish() -> int:
    """Make the pages of the recorded history; asv's exit status."""
    install("asv")
    announce("Publishing")
    return run("-m", "asv", "publish")


def commits_without_results(machine: str) -> list[str]:
    """The commits of this branch that changed what is measured and that ``machine`` has not
    measured, the newest first. A commit that did not build counts as measured."""
    files = (ROOT / "results" / machine).glob("*-*.json")
    measured = {file.name.partition("-")[0] for file in files}
    commits = git("log", "--first-parent", "--format=%H", "--", *MEASURED).split()
    return [commit for commit in commits if commit[:8] not in measured]


def is_commit(revision: str) -> bool:
    """Whether it names one; a range does not, nor do asv's own words."""
    command = ["git", "rev-parse", "--quiet", "--verify", revision + "^{commit}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0


def gate(base: str, head: str, static: bool, report: str | None, pull_request_text: str) -> int:
    """Run the gate; its exit status. Where GitHub runs this, its summary shows the report too."""
    fork_point = git("merge-base", base, head)  # what BASE gained since is not HEAD's doing
    install_everything()
    options = ["--static"] if static else []
    if report:
        options.append(f"--markdown={report}")
    if accepting := ACCEPTING.search(pull_request_text):
        options.append(f"--accept={accepting[1]}")  # one argument, whatever it begins with
    announce(f"Comparing {head} with {fork_point}")
    status = run("-m", "benchmarks", "gate", *options, fork_point, head)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and report and (ROOT / report).exists():
        with open(summary, "a", encoding="utf-8") as page:
            page.write((ROOT / report).read_text(encoding="utf-8"))
    return status


def check_gpu() -> int:
    """Whether what measuring takes is there: the driver, a GPU that computes and nobody else on it.
    What is wrong here is wrong with the machine, and the message says so."""
    try:
        announce("Checking the GPU")
        require_gpu()
    except SetupError as error:
        if os.environ.get("GITHUB_ACTIONS") == "true":
            print(f"::error title=Infrastructure::{error}", flush=True)
        raise SetupError(f"infrastructure: {error}") from None
    announce("The GPU works and is free")
    return 0


def require_gpu() -> None:
    from benchmarks import gpu

    try:
        if subprocess.run(["nvidia-smi"]).returncode:
            raise SetupError("nvidia-smi failed, see above")
    except FileNotFoundError:
        raise SetupError("the NVIDIA driver's nvidia-smi is not installed") from None
    if gpu.find() is None:
        raise SetupError("the driver runs, but CUDA sees no GPU; python -m sgemm doctor tells why")
    install("numpy", *packages_for_gpu())
    if run("-c", PRODUCT):
        raise SetupError("no 2x2 product could be computed on an idle GPU, see above")


def test(arguments: list[str]) -> int:
    """Run pytest on all cores; its exit status. Where SGEMM_REQUIRE_GPU=1, a skipped test without
    a good excuse is a failure."""
    has_gpu = install_everything()
    announce("Running the tests")
    in_parallel = ["-n", str(min(os.cpu_count() or 1, MAX_TEST_PROCESSES))]
    if not has_gpu:
        return run("-m", "pytest", *in_parallel, *arguments)
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder, "parallel.xml"), Path(folder, "alone.xml")]
        status = run(
            *("-m", "pytest", f"--junitxml={reports[0]}"),
            *(*in_parallel, "-m", "not alone", *arguments),
        )
        announce("Running the tests that need the GPU to themselves")
        alone = run("-m", "pytest", f"--junitxml={reports[1]}", "-m", "alone", *arguments)
        if os.environ.get("SGEMM_REQUIRE_GPU") == "1" and (unexcused := skipped(reports)):
            print("dev.py: these tests were skipped where none should be:", *unexcused, sep="\n  ")
            return 1
    return status or (0 if alone == NO_TESTS_SELECTED else alone)


def skipped(reports: Iterable[Path]) -> list[str]:
    """The tests that pytest's XML reports call skipped, without those that have an excuse."""
    found = []
    for report in filter(Path.exists, reports):  # there is none where pytest itself failed
        for case in ElementTree.parse(report).iter("testcase"):
            for skip in case.iter("skipped"):
                reason = skip.get("message", "")
                if not any(re.search(excuse, reason) for excuse in EXCUSES):
                    found.append(f"{case.get('classname')}::{case.get('name')}: {reason}")
    return found


def install_everything() -> bool:
    """Install what the tests and the gate need; whether that includes a GPU's packages."""
    announce("Setting up .venv with what the tests need")
    packages = packages_for_gpu()
    install("setuptools>=77")  # builds the package without pip fetching it each time
    install("--no-build-isolation", "--editable", ".[dev]", *packages)
    return bool(packages)


def packages_for_gpu() -> tuple[str, ...]:
    """What this machine's GPU needs, of the CUDA that its driver supports; nothing without one."""
    from benchmarks import gpu, gpu_packages

    try:
        return gpu_packages.packages(gpu.find())
    except gpu_packages.DriverTooOldError as error:
        raise SetupError(str(error)) from None


def constraints() -> str:
    """The file that pins versions for this machine, as a URL: pip splits the variable at spaces."""
    from benchmarks import gpu, gpu_packages

    try:
        return (ROOT / gpu_packages.constraints(gpu.find())).as_uri()
    except gpu_packages.DriverTooOldError as error:
        raise SetupError(str(error)) from None


def describe_machine(name: str) -> None:
    """Tell asv about this machine, in the words of its recorded results: asv starts a new series
    when a fact changes. Without any, and unless asv knows it, by what does not change from boot to
    boot."""
    known = Path.home() / ".asv-machine.json"
    machines = json.loads(known.read_text()) if known.exists() else {"version": 1}
    recorded = ROOT / "results" / name / "machine.json"
    if recorded.exists():
        facts = json.loads(recorded.read_text())
        del facts["version"]  # of the file's format: it is none of the machine
        known.write_text(json.dumps(machines | {name: facts}, indent=4))
        return
    if name in machines:
        return
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    described = ["--machine", name, "--os", platform.system(), "--ram", f"{memory_gib:.0f} GiB"]
    # asv changes facts only where it has some already. It prints questions that it answers itself.
    run("-m", "asv", "machine", "--yes", quiet=True)
    run("-m", "asv", "machine", *described)


def require_history() -> None:
    """Raise SetupError unless asv can measure what is in the working tree."""
    try:
        shallow = git("rev-parse", "--is-shallow-repository") == "true"
    except FileNotFoundError:
        raise SetupError("git is needed and not installed") from None
    if shallow:
        raise SetupError(
            "this clone is shallow, and the history needs all commits: git fetch --unshallow"
        )
    if changed := git("status", "--porcelain", "--untracked-files=no", "--", *MEASURED):
        files = ", ".join(line.split(maxsplit=1)[1] for line in changed.splitlines())
        raise SetupError(f"asv measures commits, and these changes are in none: {files}")


def require_commits(given: str) -> None:
    """Raise SetupError unless git knows such commits or it is a word of asv's, which would end with
    a traceback."""
    if given in ASV_WORDS or given.startswith("HASHFILE:"):
        return
    try:
        command = ["git", "rev-parse", *shlex.split(given), "--"]  # split as by asv
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    except (ValueError, subprocess.CalledProcessError) as error:
        reason = f"{given!r} is no commit of this repository, nor a range of them"
        raise SetupError(reason) from error


def git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        raise SetupError(f"git {arguments[0]} failed: {' '.join(result.stderr.split())}")
    return result.stdout.strip()


def install(*requirements: str) -> None:
    """Install into .venv, which is created if need be."""
    if not PYTHON.exists():
        create_venv()
    if run("-m", "pip", "install", "--disable-pip-version-check", *requirements):
        raise SetupError("pip failed, see above")


def create_venv() -> None:
    """Create .venv, also where Python came without the module that gives it pip."""
    if importlib.util.find_spec("ensurepip") is not None:
        creator = [sys.executable, "-m", "venv", str(VENV)]
        failed = subprocess.run(creator).returncode
    elif importlib.util.find_spec("pip") is not None:
        with tempfile.TemporaryDirectory() as folder:
            # Into a folder of its own, which an externally managed Python does not refuse.
            into = ["--quiet", "--target", folder, "virtualenv"]
            failed = (
                subprocess.run([sys.executable, "-m", "pip", "install", *into]).returncode
                or subprocess.run(
                    [sys.executable, "-m", "virtualenv", str(VENV)],
                    env={**os.environ, "PYTHONPATH": folder},
                ).returncode
            )
    else:
        raise SetupError(
            f"{sys.executable} has neither pip nor ensurepip; install Python's venv module "
            "(on Debian and Ubuntu: apt install python3-venv)"
        )
    if failed:
        raise SetupError("no virtual environment could be made in .venv, see above")


def run(*arguments: str, quiet: bool = False) -> int:
    """Run .venv's Python in the checkout, its own programs first; the exit status. Of one that is
    ``quiet`` the output is shown if it fails."""
    environment = dict(os.environ)
    environment["PATH"] = os.pathsep.join([str(PYTHON.parent), environment.get("PATH", "")])
    if "PIP_CONSTRAINT" not in environment:
        environment["PIP_CONSTRAINT"] = constraints()
    command = [str(PYTHON), *arguments]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=quiet, text=True)
    if quiet and result.returncode:
        print(result.stdout + result.stderr, end="", flush=True)
    return result.returncode


def announce(step: str) -> None:
    print(f"\n==> {step}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
