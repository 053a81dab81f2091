"""Two commits built side by side, by asv's machinery: its environment, its build and install
commands, its cache of wheels. asv installs one commit at a time; what it has installed is copied to
a folder of the commit's own, which is kept, so that a commit is built once."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import child
from .checkout import ROOT

_END_OF_BUILD = "[end of output]"
MEASURED = ("kernels", "sgemm", "pyproject.toml")  # what asv takes from a commit


class BuildError(RuntimeError):
    """A commit could not be built, or there is nothing to build it with."""


@dataclass(frozen=True)
class Build:
    """The package of one commit, in ``folder``, and the Python that runs it."""

    commit: str
    folder: Path
    python: str
    variables: Mapping[str, str]

    def command(self, module: str, args: Sequence[str], keys: Sequence[str] = ()) -> list[str]:
        """The command line of a child process (see ``child``); with ``variables`` this build is the
        package that it finds."""
        return child.command(self.python, module, args, keys)

    def ask(self, module: str, args: Sequence[str], keys: Sequence[str]) -> dict[str, child.Record]:
        """A child's record for each key; BuildError if it does not answer for all of them."""
        finished = subprocess.run(
            self.command(module, args, keys), env=self.variables, capture_output=True, text=True
        )
        records: dict[str, child.Record] = {}
        for line in finished.stdout.splitlines():
            records |= json.loads(line)
        if finished.returncode or records.keys() != set(keys):
            why = finished.stderr.strip().splitlines()[-1:] or [f"status {finished.returncode}"]
            raise BuildError(f"{self.commit[:8]} gives no {module}: {why[0]}")
        return records


def of_checkout(python: str) -> Build:
    """The checkout itself, which takes no building."""
    return Build("checkout", ROOT, python, _variables(ROOT, os.environ.get("PYTHONPATH")))


def resolve(name: str) -> str:
    """The full hash of a commit; BuildError if there is none of that name."""
    quietly = ("--quiet", "--verify", "--end-of-options")  # of a wrong name git then says nothing
    wrong_name = f"{name!r} is no commit of this repository"
    return _git("rev-parse", *quietly, f"{name}^{{commit}}", unsaid=wrong_name)


def same_sources(base: str, head: str) -> bool:
    """Whether two commits differ in nothing that is measured."""
    return not _git("diff", "--name-only", base, head, "--", *MEASURED)


def _git(*arguments: str, unsaid: str = "") -> str:
    """What git prints; BuildError with its reason, or ``unsaid`` where it fails without a word."""
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        reason = " ".join(result.stderr.split())
        raise BuildError(f"git {arguments[0]} failed: {reason}" if reason else unsaid)
    return result.stdout.strip()


def build(commits: Sequence[str]) -> list[Build]:
    """Build the commits, in that order; raises BuildError with the reason."""
    with chdir(ROOT), redirect_stdout(sys.stderr):  # asv works in the folder of its configuration
        asv = _asv()
        return [_build(commit, *asv) for commit in commits]


def _asv() -> tuple[Any, Any, Any]:
    """asv's configuration, repository and environment."""
    try:
        from asv import environment, plugins
        from asv.config import Config
        from asv.plugin_manager import plugin_manager
        from asv.repo import get_repo
    except ImportError as error:
        raise BuildError(f"commits are built by asv: {error}") from error
    plugin_manager.load_plugins(plugins)  # the kinds of environments are plugins
    with _named("reading asv.conf.json", _asv_errors()):
        conf = Config.load()
        repository = get_repo(conf)
        found = list(environment.get_environments(conf, []))
    if not found:
        raise BuildError(
            f"there is no Python {' or '.join(conf.pythons)} to make a "
            f"{conf.environment_type} environment with, as asv.conf.json asks"
        )
    with _named(f"making asv's environment {found[0].name}", _asv_errors()):
        found[0].create()
    return conf, repository, found[0]


def _asv_errors() -> tuple[type[BaseException], ...]:
    from asv import util

    return OSError, util.ProcessError, util.UserError


def _build(commit: str, conf: Any, repository: Any, environment: Any) -> Build:
    folder = (ROOT / conf.env_dir).parent / "builds" / environment.dir_name / commit
    if not folder.exists():
        with _named(f"building {commit[:8]}", _asv_errors()):
            environment.install_project(conf, repository, commit)
            script = "import sgemm; print(sgemm.__path__[0])"
            installed = environment.run(["-P", "-c", script]).strip()
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(installed, unfinished / "sgemm")
        unfinished.rename(folder)
    python = environment.find_executable("python")
    return Build(commit, folder, python, _variables(folder, os.environ.get("ASV_PYTHONPATH")))


def _variables(folder: Path, python_path: str | None) -> dict[str, str]:
    paths = [str(folder), *([python_path] if python_path else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def _named(step: str, errors: tuple[type[BaseException], ...]) -> Iterator[None]:
    """Say at which step something failed, and why."""
    try:
        yield
    except errors as error:
        raise BuildError(f"{step} failed: {_last_words(error) or error}") from error


def _last_words(error: BaseException) -> str | None:
    """What the program that failed said last; pip marks where the build's own words end."""
    output = getattr(error, "stderr", None) or getattr(error, "stdout", None) or ""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if _END_OF_BUILD in lines:
        return lines[lines.index(_END_OF_BUILD) - 1]
    return lines[-1] if lines else None
