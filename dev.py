#!/usr/bin/env python3
"""Sets the project up in .venv and runs it. Needs Python 3.11 or newer, git and a C++ compiler.

    python3 dev.py site [--machine NAME] [RANGE]   measure commits, publish the benchmark history
    python3 dev.py test [PYTEST ARGUMENT ...]      run the tests

Both use the GPU too where there is one. Packages are those that constraints.txt pins; set
PIP_CONSTRAINT, to nothing if need be, for others.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
MEASURED = ("kernels", "sgemm", "pyproject.toml")  # what asv takes from a commit
MAX_TEST_PROCESSES = 8
NO_TESTS_SELECTED = 5  # pytest's status, for arguments that select none of these


class SetupError(Exception):
    """Why this machine cannot do what was asked, and what helps."""


def main() -> int:
    machine = re.sub(r"[^\w.-]+", "-", platform.node()) or "this-machine"
    parser = argparse.ArgumentParser(
        prog="dev.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    site_parser = commands.add_parser("site", help="measure commits and publish the history")
    site_parser.add_argument("range", nargs="?", default="HEAD^!", help="default: %(default)s")
    site_parser.add_argument("--machine", default=machine, help="default: %(default)s")
    commands.add_parser("test", add_help=False, help="run the tests")
    options, others = parser.parse_known_args()
    try:
        if sys.version_info < (3, 11):  # noqa: UP036 - said in words, not by a syntax error
            raise SetupError(f"this is Python {platform.python_version()}; 3.11 or newer is needed")
        if options.command == "test":
            return test(others)
        if others:
            parser.error(f"unknown arguments: {' '.join(others)}")
        return site(options.machine, options.range)
    except SetupError as error:
        print(f"dev.py: {error}", file=sys.stderr)
        return 2


def site(machine: str, commits: str) -> int:
    """Measure the commits with asv as ``machine``, and publish the history; asv's exit status."""
    require_history()
    announce("Setting up .venv with asv")
    install("asv")
    describe_machine(machine)
    announce(f"Measuring {commits} as {machine}")
    status = run("-m", "asv", "run", "--record-samples", "--machine", machine, commits)
    announce("Publishing")
    status = run("-m", "asv", "publish") or status
    if status:
        print("dev.py: asv reported failures, see above", file=sys.stderr)
        return status
    announce("This opens the benchmark history:")
    print("    .venv/bin/asv preview --browser")
    return 0


def test(arguments: list[str]) -> int:
    """Run pytest on all cores; its exit status."""
    from benchmarks import gpu, gpu_packages

    announce("Setting up .venv with what the tests need")
    has_gpu = gpu.find() is not None
    install("--editable", ".[dev]", *(gpu_packages.PACKAGES if has_gpu else ()))
    announce("Running the tests")
    in_parallel = ["-n", str(min(os.cpu_count() or 1, MAX_TEST_PROCESSES))]
    if not has_gpu:
        return run("-m", "pytest", *in_parallel, *arguments)
    status = run("-m", "pytest", *in_parallel, "-m", "not alone", *arguments)
    announce("Running the tests that need the GPU to themselves")
    alone = run("-m", "pytest", "-m", "alone", *arguments)
    return status or (0 if alone == NO_TESTS_SELECTED else alone)


def describe_machine(name: str) -> None:
    """Tell asv about this machine, unless it knows it; without what changes from boot to boot, as
    asv starts a new series when a fact changes."""
    known = Path.home() / ".asv-machine.json"
    if known.exists() and name in json.loads(known.read_text()):
        return
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    facts = ["--machine", name, "--os", platform.system(), "--ram", f"{memory_gib:.0f} GiB"]
    run("-m", "asv", "machine", "--yes")  # asv changes facts only where it has some already
    run("-m", "asv", "machine", *facts)


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


def git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        raise SetupError(f"git {arguments[0]} failed: {result.stderr.strip()}")
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


def run(*arguments: str) -> int:
    """Run .venv's Python in the checkout, its own programs first; the exit status."""
    environment = dict(os.environ)
    environment["PATH"] = os.pathsep.join([str(PYTHON.parent), environment.get("PATH", "")])
    # As a URL, since pip splits the variable at spaces.
    environment.setdefault("PIP_CONSTRAINT", (ROOT / "constraints.txt").as_uri())
    return subprocess.run([PYTHON, *arguments], cwd=ROOT, env=environment).returncode


def announce(step: str) -> None:
    print(f"\n==> {step}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
