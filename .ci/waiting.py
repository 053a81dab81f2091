#!/usr/bin/env python3
"""Says which jobs wait for a machine of one's own that takes none: its runner is off, or lacks the
label. GitHub itself says nothing, and gives such a job up after a day.

    python3 .ci/waiting.py MINUTES

Status 1 if a job has waited for longer while no other ran on its machine. The environment gives
GITHUB_TOKEN, GITHUB_REPOSITORY and GITHUB_API_URL, as GitHub does.
"""

from __future__ import annotations

import argparse
import os
import sys
import urllib.error
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from github_api import PER_PAGE, request

Job = dict[str, Any]

SELF_HOSTED = "self-hosted"
RUNNING = "in_progress"
UNFINISHED = (RUNNING, "queued", "pending")  # pending: another job of the group runs


def main() -> int:
    options = parse(sys.argv[1:])
    try:
        jobs = list(unfinished_jobs())
    except (urllib.error.URLError, KeyError) as error:
        print(f"waiting.py: GitHub does not say which jobs wait: {error!r}", file=sys.stderr)
        return 1
    found = forsaken(jobs, datetime.now(UTC) - timedelta(minutes=options.minutes))
    for job in found:
        machine = ", ".join(job["labels"])
        print(
            f"::error title=No runner::{job['name']} waits since {job['created_at']} for a runner "
            f"with the labels {machine}: {job['html_url']}"
        )
    return 1 if found else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="waiting.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("minutes", type=int)
    return parser.parse_args(arguments)


def unfinished_jobs() -> Iterator[Job]:
    """All that wait or run, of the newest hundred runs in each state."""
    actions = f"/repos/{os.environ['GITHUB_REPOSITORY']}/actions/runs"
    runs = {
        run["id"]
        for status in UNFINISHED
        for run in request("GET", f"{actions}?status={status}&per_page={PER_PAGE}")["workflow_runs"]
    }
    for run in sorted(runs):
        jobs = request("GET", f"{actions}/{run}/jobs?per_page={PER_PAGE}")["jobs"]
        yield from (job for job in jobs if job["status"] in UNFINISHED)


def forsaken(jobs: Iterable[Job], deadline: datetime) -> list[Job]:
    """Those that have waited since before the deadline and not for another job: jobs of one machine
    run one after another."""
    own = [job for job in jobs if SELF_HOSTED in job["labels"]]
    busy = {frozenset(job["labels"]) for job in own if job["status"] == RUNNING}
    return [
        job
        for job in own
        if frozenset(job["labels"]) not in busy
        and datetime.fromisoformat(job["created_at"]) < deadline
    ]


if __name__ == "__main__":
    sys.exit(main())
