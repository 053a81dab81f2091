"""GitHub's API, as a job of a workflow reaches it. The environment gives GITHUB_API_URL, as GitHub
does, and GITHUB_TOKEN."""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any

SECONDS = 30
PER_PAGE = 100


def request(method: str, path: str, content: dict[str, str] | None = None) -> Any:
    """The answer; urllib.error.URLError where there is none."""
    question = urllib.request.Request(
        os.environ["GITHUB_API_URL"] + path,
        data=None if content is None else json.dumps(content).encode(),
        method=method,
        headers={
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(question, timeout=SECONDS) as answer:
        return json.load(answer)
