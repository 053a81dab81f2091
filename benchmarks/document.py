"""The JSON document that a command prints for programs."""

import json
from collections.abc import Sequence
from typing import Any


def document(command: str, environment: Any, rows: Sequence[Any], **others: Any) -> dict[str, Any]:
    """``{schema, command, environment, ..., rows}``, with what else the command has to say."""
    return {
        "schema": f"benchmarks/{command}/1",
        "command": command,
        "environment": environment,
        **others,
        "rows": rows,
    }


def print_document(content: dict[str, Any]) -> None:
    """Print it and nothing else; ValueError for a figure that JSON lacks (inf, NaN)."""
    print(json.dumps(content, indent=2, allow_nan=False))  # in ASCII, which every stdout takes
