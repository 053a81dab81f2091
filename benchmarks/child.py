"""Runs a module of the instrument in a process of its own, so that whatever a kernel does to its
process (a sticky CUDA error, a crash, a hang) stays there.

The child imports the instrument from the checkout and ``sgemm`` as installed: the checkout's folder
is not on its path. It answers with one JSON object per line.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
Record = dict[str, Any]


def collect(
    module: str, args: Sequence[str], keys: Sequence[str], timeout: float
) -> dict[str, Record]:
    """One record per key from ``benchmarks.<module>.answer(args, keys, emit)`` in child processes.

    A child answers for its keys in order. One that dies costs the key it was at, whose record is
    then ``{"error": why}``; another child takes the rest. Two in a row that die before they emit
    anything cost all keys: no child can start. Records under further keys (its environment) are
    kept.
    """
    records: dict[str, Record] = {}
    silent = False
    while missing := [key for key in keys if key not in records]:
        found, failure = _run(module, args, missing, timeout)
        unanswered = [key for key in missing if key not in found]
        lost = unanswered if silent and not found else unanswered[:1]
        records |= found | {key: {"error": failure} for key in lost}
        silent = not found
    return records


def collect_at_once(
    module: str, args: Sequence[str], keys: Sequence[str], timeout: float
) -> dict[str, Record]:
    """What ``collect`` returns, from as many children at a time as there are cores: for what takes
    no GPU."""
    return in_shares(lambda share: collect(module, args, share, timeout), keys)


def in_shares(
    ask: Callable[[Sequence[str]], dict[str, Record]], keys: Sequence[str]
) -> dict[str, Record]:
    """The records that ``ask`` has for the keys, asked for a share of them per core at once.

    Neighbouring keys, which take about equally long, are dealt out to different shares.
    """
    cores = os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:
        found = pool.map(ask, [share for i in range(cores) if (share := keys[i::cores])])
        return {key: record for records in found for key, record in records.items()}


def command(python: str, module: str, args: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The command line of a child."""
    return [python, "-P", __file__, module, json.dumps([list(args), list(keys)])]


def _run(
    module: str, args: Sequence[str], keys: Sequence[str], timeout: float
) -> tuple[dict[str, Record], str]:
    """The records that one child emitted, and why it emitted no more."""
    try:
        child = subprocess.run(
            command(sys.executable, module, args, keys), capture_output=True, timeout=timeout
        )
        output, errors = child.stdout, child.stderr
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        failure = "; ".join([f"the process ended with status {child.returncode}", *last])
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout or b""
        failure = f"no answer within {timeout:.0f} s"
    # A line that is cut short was being written when the child died.
    lines = [line for line in output.decode().splitlines(keepends=True) if line.endswith("\n")]
    return {key: record for line in lines for key, record in json.loads(line).items()}, failure


def _answer(module: str, request: str) -> None:
    sys.path.insert(0, str(ROOT))
    importlib.import_module("benchmarks")  # from now on it finds its modules by itself
    sys.path.pop(0)

    # What libraries print must not come between the records.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def emit(key: str, record: Record) -> None:
        print(json.dumps({key: record}), file=answers, flush=True)

    args, keys = json.loads(request)
    answer: Callable[..., None] = importlib.import_module(f"benchmarks.{module}").answer
    answer(args, keys, emit)


if __name__ == "__main__":
    _answer(*sys.argv[1:])
