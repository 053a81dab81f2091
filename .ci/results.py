#!/usr/bin/env python3
"""Keeps the results that runners measure on a branch of their own, which merges into main.

    python3 .ci/results.py fetch                    bring its results into this checkout
    python3 .ci/results.py record MACHINE FOLDER    add those of MACHINE, found in FOLDER, and push

FOLDER has what the checkout had on the machine: in results/ benchmarks.json, the machine's folder
and, where a slowdown was accepted, accepted.jsonl; and .asv/measurements/, all that was measured of
each commit, with the state of the GPU at each sample.

The branch is main with more files in results/, so that `git merge origin/results` on main changes
nothing else.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

BRANCH = "results"
MAIN = "main"
ACCEPTED = Path("results", "accepted.jsonl")
PUSHES = 5  # as another machine may push between our fetch and our push
IDENTITY = (
    "-c",
    "user.name=github-actions[bot]",
    "-c",
    "user.email=41898282+github-actions[bot]@users.noreply.github.com",
)
# A conflict is two measurements of one commit: the branch's is the newer one.
MERGING = ("merge", "--quiet", "--no-edit", "--strategy-option=ours", f"origin/{MAIN}")


class ResultsError(Exception):
    """Why the results cannot be fetched or recorded."""


def main() -> int:
    options = parse(sys.argv[1:])
    try:
        if options.command == "fetch":
            fetch(Path.cwd())
        else:
            record(Path.cwd(), options.machine, options.folder)
    except ResultsError as error:
        print(f"results.py: {error}", file=sys.stderr)
        return 1
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="results.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch")
    recording = commands.add_parser("record")
    recording.add_argument("machine")
    recording.add_argument("folder", type=Path)
    return parser.parse_args(arguments)


def fetch(checkout: Path) -> None:
    """Add the branch's results to the checkout's."""
    with merged(checkout) as tree:
        shutil.copytree(tree / "results", checkout / "results", dirs_exist_ok=True)


def record(checkout: Path, machine: str, folder: Path) -> None:
    """Commit the results that ``folder`` has of ``machine``, and push."""
    found = results_of(machine, folder)
    for _ in range(PUSHES):
        with merged(checkout) as tree:
            for path, text in found.items():
                target = tree / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
            remember(folder / ACCEPTED, tree / ACCEPTED)
            git(tree, "add", "--force", "results")  # other machines' are ignored in a checkout
            if git(tree, "diff", "--cached", "--name-only"):
                git(tree, *IDENTITY, "commit", "--quiet", "--message", f"Results of {machine}")
            push = ("push", "--quiet", "origin", f"HEAD:refs/heads/{BRANCH}")
            if subprocess.run(["git", *push], cwd=tree).returncode == 0:
                return
    raise ResultsError(f"git push failed {PUSHES} times, see above")


def results_of(machine: str, folder: Path) -> dict[Path, str]:
    """The files to record, and what they will have; raises ResultsError unless ``folder`` has what
    is written for that machine."""
    if not re.fullmatch(r"\w[\w.-]*", machine):
        raise ResultsError(f"no name of a machine: {machine!r}")
    results = folder / "results"
    files = [results / "benchmarks.json", *sorted((results / machine).glob("*.json"))]
    whole_hash = "?" * 40  # what is named otherwise is of no commit
    measurements = sorted((folder / ".asv" / "measurements").glob(f"{whole_hash}.json"))
    found = {}
    for file in [*files, *measurements]:
        try:
            text = file.read_text()
            content = json.loads(text)
        except (OSError, ValueError) as error:
            raise ResultsError(f"{file} is no file of results: {error}") from None
        if file.name == "machine.json" and content["machine"] != machine:
            raise ResultsError(f"{file} is of {content['machine']}")
        if file in measurements:  # on one line, as asv takes every .json there for results
            found[Path("results", machine, f"{file.stem}.jsonl")] = json.dumps(content) + "\n"
        else:
            found[file.relative_to(folder)] = text
    return found


def remember(found: Path, kept: Path) -> None:
    """Add the accepted slowdowns in ``found`` to those in ``kept``, where they are new."""
    known = kept.read_text().splitlines() if kept.exists() else []
    lines = found.read_text().splitlines() if found.exists() else []
    try:
        for line in lines:
            json.loads(line)
    except ValueError as error:
        raise ResultsError(f"{found} is no file of accepted slowdowns: {error}") from None
    if new := [line for line in lines if line not in known]:
        kept.write_text("".join(f"{line}\n" for line in [*known, *new]))


@contextmanager
def merged(checkout: Path) -> Iterator[Path]:
    """A folder with main as it is now and the branch's results, which goes away afterwards."""
    git(checkout, "fetch", "--quiet", "origin", f"+{MAIN}:refs/remotes/origin/{MAIN}")
    exists = git(checkout, "ls-remote", "--heads", "origin", f"refs/heads/{BRANCH}")
    if exists:
        git(checkout, "fetch", "--quiet", "origin", f"+{BRANCH}:refs/remotes/origin/{BRANCH}")
    start = f"origin/{BRANCH if exists else MAIN}"
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        git(checkout, "worktree", "add", "--quiet", "--detach", str(tree), start)
        try:
            git(tree, *IDENTITY, *MERGING)
            yield tree
        finally:
            git(checkout, "worktree", "remove", "--force", str(tree))


def git(folder: Path, *arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    if result.returncode:
        raise ResultsError(f"git {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
