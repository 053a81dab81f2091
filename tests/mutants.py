"""Plants faults into the project's own sources, one at a time, and shows which test goes red.

    python tests/mutants.py                 all of them
    python tests/mutants.py v4_ barrier     those whose names have all of these words
    python tests/mutants.py --list          their names alone

A fault that no test sees is a test that is missing. The faults of ``faults.py`` are patterns that
are looked for in the sources as they are now, so they follow the code; a pattern that is found no
more is an error. Each runs in a copy of the checkout, without a GPU, and the tests that it is run
against are green there without it. Compiled kernels are kept as always.

Exit status: 0 every fault is seen, 1 one is not, 2 it cannot be told.

No library of mutations fits: those for Python read no .cu file, those for C++ parse no CUDA, and
none knows what a barrier, a wait or a stale result is.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue

from faults import (
    CONVERSION_KEYWORD,
    CONVERSION_TESTS,
    CONVERSIONS,
    KERNEL_RULES,
    NO_FAULTS,
    ON_A_GPU_ONLY,
    PYTHON_FAULTS,
    VERSION_TESTS,
)

from sgemm import LADDER

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 300.0  # of one fault's tests
PROCESSES = os.cpu_count() or 1
NOT_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|#[^\n]*|\b(?:static_assert|DEVICE_ASSERT)\(.*?\);", re.DOTALL
)


class NoVerdictError(Exception):
    """Whether a test sees a fault cannot be told."""


@dataclass(frozen=True)
class Mutant:
    """``file`` with one ``fault``, which makes its text ``text``; ``tests`` are those that should
    see it, in that order, of which ``keyword`` selects some."""

    file: str
    line: int
    fault: str
    replaced: str
    source: str = field(repr=False)  # the whole line, without the fault
    text: str = field(repr=False)
    tests: tuple[str, ...] = field(repr=False)
    keyword: str = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}: {self.fault} ({' '.join(self.replaced.split())})"


@dataclass(frozen=True)
class Verdict:
    """The test that has seen a fault, None if none has, and how long that took."""

    killer: str | None
    seconds: float


def every_mutant() -> list[Mutant]:
    """All faults; raises NoVerdictError for a pattern that is not found."""
    mutants = [*_of_kernels(), *_of_python()]
    found = {(Path(mutant.file).name, mutant.fault, mutant.source) for mutant in mutants}
    if missing := NO_FAULTS.keys() - found:
        raise NoVerdictError(f"there is no such line any more: {sorted(missing)}")
    return [
        mutant
        for mutant in mutants
        if (Path(mutant.file).name, mutant.fault, mutant.source) not in NO_FAULTS
    ]


def _of_kernels() -> Iterator[Mutant]:
    unused = {rule.fault for rule in KERNEL_RULES}
    for path in sorted((ROOT / "kernels").glob("*.cu*")):
        if path.name in ON_A_GPU_ONLY:
            continue
        if path.name in CONVERSIONS:
            tests, keyword = CONVERSION_TESTS, CONVERSION_KEYWORD
        else:
            versions = [v.name for v in LADDER.values() if path.name in _reads(v.source)]
            if not versions:
                continue
            tests, keyword = VERSION_TESTS, " or ".join(versions)
        text = path.read_text(encoding="utf-8")
        code = NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
        for rule in KERNEL_RULES:
            for match in re.finditer(rule.pattern, code):
                replacement = match.expand(rule.replacement)
                unused.discard(rule.fault)
                if replacement != match[0]:
                    yield _mutant(
                        path,
                        text,
                        match.span(),
                        replacement,
                        rule.fault,
                        rule.tests or tests,
                        keyword,
                    )
    if unused:
        raise NoVerdictError(f"no kernel has what these rules change: {sorted(unused)}")


def _reads(kernel: str) -> set[str]:
    """The kernel's file and the headers that it includes."""
    text = (ROOT / "kernels" / kernel).read_text(encoding="utf-8")
    headers = re.findall(r'^#include "(.*)"', text, re.MULTILINE)
    known = [header for header in headers if (ROOT / "kernels" / header).exists()]
    return {kernel}.union(*map(_reads, known))


def _of_python() -> Iterator[Mutant]:
    for faults in PYTHON_FAULTS:
        path = ROOT / faults.file
        text = path.read_text(encoding="utf-8")
        for fault, old, new in faults.planted:
            if text.count(old) != 1:
                raise NoVerdictError(f"{faults.file} has {old!r} {text.count(old)} times, not once")
            start = text.index(old)
            span = start, start + len(old)
            yield _mutant(path, text, span, new, fault, faults.tests, faults.keyword)


def _mutant(
    path: Path,
    text: str,
    span: tuple[int, int],
    replacement: str,
    fault: str,
    tests: Sequence[str],
    keyword: str,
) -> Mutant:
    start, end = span
    line = text.count("\n", 0, start) + 1
    return Mutant(
        str(path.relative_to(ROOT)),
        line,
        fault,
        text[start:end],
        text.splitlines()[line - 1].strip(),
        text[:start] + replacement + text[end:],
        tuple(f"tests/{test}" for test in tests),
        keyword,
    )


class Copy:
    """A copy of the checkout to plant faults in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        left_out = shutil.ignore_patterns(".*", "__pycache__", "build")
        shutil.copytree(ROOT, folder, ignore=left_out, dirs_exist_ok=True)

    def judge(self, mutant: Mutant) -> Verdict:
        """Plant the fault, run its tests until one fails; raises NoVerdictError where none can tell
        anything."""
        file = self._folder / mutant.file
        right = file.read_text(encoding="utf-8")
        file.write_text(mutant.text, encoding="utf-8")
        start = time.monotonic()
        try:
            killer = self._first_failure(mutant)
        finally:
            file.write_text(right, encoding="utf-8")
        return Verdict(killer, time.monotonic() - start)

    def _first_failure(self, mutant: Mutant) -> str | None:
        """One run for each file of tests, as pytest would mix the tests of several."""
        for _, tests in groupby(mutant.tests, key=lambda test: test.partition("::")[0]):
            if failure := self._failure(mutant, tests):
                return failure
        return None

    def _failure(self, mutant: Mutant, tests: Iterable[str]) -> str | None:
        quiet = ("-p", "no:cacheprovider", "-p", "no:faulthandler", "--tb=short")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "SGEMM_REQ"))}
        environment = {
            **kept,
            "PYTHONPATH": str(self._folder),  # before whatever sgemm is installed
            "PYTHONDONTWRITEBYTECODE": "1",  # it would be told by time and size, which may stay
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # half of the time that a short run takes
            "CUDA_VISIBLE_DEVICES": "",
            "OPENBLAS_NUM_THREADS": "1",
        }
        try:
            run = subprocess.run(
                [sys.executable, "-m", "pytest", *quiet, "-x", "-v", "-k", mutant.keyword, *tests],
                cwd=self._folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired as expired:
            raise NoVerdictError(f"{mutant.name}: no end within {expired.timeout:.0f} s") from None
        if "does not compile" in run.stdout:
            raise NoVerdictError(f"{mutant.name}: does not compile:\n{run.stdout}")
        if run.returncode == 0 and " PASSED" in run.stdout:
            return None
        failed = re.findall(r"^(tests/.*?::.*?) (?:FAILED|ERROR)", run.stdout, re.MULTILINE)
        if run.returncode == 1 and failed:
            return failed[0]
        started = re.findall(r"^(tests/.*?::.*?) *(?:$|PASSED|SKIPPED)", run.stdout, re.MULTILINE)
        if run.returncode < 0 and started:
            return f"{started[-1]} (signal {-run.returncode})"
        raise NoVerdictError(f"{mutant.name}: pytest ends with {run.returncode}:\n{run.stdout}")


def without_faults(mutants: Sequence[Mutant]) -> list[Mutant]:
    """What must pass all tests of these mutants, as it changes nothing: one for each set of
    tests."""
    keywords: dict[tuple[str, ...], set[str]] = {}
    for mutant in mutants:
        keywords.setdefault(mutant.tests, set()).add(mutant.keyword)
    file = mutants[0].file
    text = (ROOT / file).read_text(encoding="utf-8")
    return [
        Mutant(file, 0, "no fault", "", "", text, tests, keyword)
        for tests, of_tests in keywords.items()
        for keyword in ["" if "" in of_tests else " or ".join(sorted(of_tests))]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Plants faults and shows which test sees each.")
    parser.add_argument("words", nargs="*", help="plant those whose names have all of them")
    parser.add_argument("--list", action="store_true", help="list the faults")
    options = parser.parse_args(arguments)
    try:
        mutants = [
            mutant
            for mutant in every_mutant()
            if all(word.casefold() in mutant.name.casefold() for word in options.words)
        ]
    except NoVerdictError as error:
        print(f"mutants.py: {error}", file=sys.stderr)
        return 2
    if not mutants:
        print("mutants.py: no fault has all of these words in its name", file=sys.stderr)
        return 2
    if options.list:
        print(*(f"{mutant.name}: {mutant.source}" for mutant in mutants), sep="\n")
        return 0
    return _judge_all(mutants)


def _judge_all(mutants: Sequence[Mutant]) -> int:
    """Judge and print; the exit status."""
    start = time.monotonic()
    survivors: list[str] = []
    untold: list[str] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(PROCESSES) as pool:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for i in range(PROCESSES):
            copies.put(Copy(Path(folder, str(i))))

        def judge(mutant: Mutant) -> Verdict | NoVerdictError:
            copy = copies.get()
            try:
                return copy.judge(mutant)
            except NoVerdictError as error:
                return error
            finally:
                copies.put(copy)

        for verdict in pool.map(judge, without_faults(mutants)):
            if isinstance(verdict, NoVerdictError):
                untold.append(str(verdict))
            elif verdict.killer:
                untold.append(f"{verdict.killer} fails without a fault")
        for mutant, verdict in zip(mutants, pool.map(judge, mutants), strict=True):
            if isinstance(verdict, NoVerdictError):
                untold.append(str(verdict))
                print(f"no verdict  {mutant.name}", flush=True)
            elif verdict.killer is None:
                survivors.append(mutant.name)
                print(f"SURVIVES  {verdict.seconds:4.1f} s  {mutant.name}", flush=True)
            else:
                print(f"seen  {verdict.seconds:4.1f} s  {mutant.name}", flush=True)
                print(f"              by {verdict.killer}", flush=True)
    seconds = time.monotonic() - start
    if not survivors and not untold:
        print(f"All {len(mutants)} faults are seen by a test; {seconds:.0f} s.")
    for name in survivors:
        print(f"no test sees {name}", file=sys.stderr)
    for reason in untold:
        print(f"mutants.py: {reason}", file=sys.stderr)
    return 1 if survivors else 2 if untold else 0


if __name__ == "__main__":
    sys.exit(main())
