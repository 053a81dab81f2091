#!/usr/bin/env python3
"""Writes the gate's reports into one comment of a pull request, and updates it at the next run.

    python3 .ci/comment.py NUMBER OUTCOME FOLDER

OUTCOME is how the gate's job ended; FOLDER has a Markdown file per machine, or none where the job
came to none. The environment gives GITHUB_TOKEN, GITHUB_REPOSITORY, GITHUB_API_URL,
GITHUB_SERVER_URL and GITHUB_RUN_ID, as GitHub does.
"""

from __future__ import annotations

import argparse
import os
import sys
import urllib.error
from collections.abc import Sequence
from pathlib import Path

from github_api import PER_PAGE, request

MARKER = "<!-- sgemm: speed -->"
"""By this line the comment is found again."""

LONGEST = 60_000  # GitHub takes 65,536 characters


def main() -> int:
    options = parse(sys.argv[1:])
    try:
        post(options.number, body(options.outcome, reports(options.folder), run_url()))
    except (urllib.error.URLError, KeyError) as error:
        print(f"comment.py: the comment could not be written: {error!r}", file=sys.stderr)
        return 1
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="comment.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("number", type=int)
    parser.add_argument("outcome", choices=["success", "failure", "cancelled"])
    parser.add_argument("folder", type=Path)
    return parser.parse_args(arguments)


def reports(folder: Path) -> list[str]:
    return [file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.md"))]


def body(outcome: str, reports: Sequence[str], url: str) -> str:
    """The comment: the outcome first, as a report may be missing or of one machine of several."""
    lines = [MARKER, f"**Speed: {outcome}** ([run]({url}))", *reports]
    if not reports:
        lines.append("No speed was measured: the run says why.")
    text = "\n\n".join(lines)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n\n(cut here: the run has it all)"


def run_url() -> str:
    return "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}".format(
        **os.environ
    )


def post(number: int, text: str) -> None:
    """Update the comment that has the marker, or add it."""
    comments = f"/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    page = 1
    while True:
        listed = request("GET", f"{comments}/{number}/comments?per_page={PER_PAGE}&page={page}")
        for comment in listed:
            if comment["user"]["type"] == "Bot" and comment["body"].startswith(MARKER):
                request("PATCH", f"{comments}/comments/{comment['id']}", {"body": text})
                return
        if len(listed) < PER_PAGE:
            break
        page += 1
    request("POST", f"{comments}/{number}/comments", {"body": text})


if __name__ == "__main__":
    sys.exit(main())
