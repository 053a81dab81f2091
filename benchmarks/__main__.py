"""``python -m benchmarks``: measuring by hand.

Exit status: 0 all results are right, 1 one is wrong or a kernel failed, 2 nothing could be
measured; the reason is on stderr.
"""

import argparse
import sys
from typing import NoReturn


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: list[str] | None = None) -> int:
    parser = _Parser(prog="python -m benchmarks", description="Measures the ladder on this GPU.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "table",
        help="the whole ladder, cuBLAS and the FFMA peak in one run",
        description="Measures every version, cuBLAS FP32 and the FFMA peak in one interleaved run.",
    )
    command.add_argument(
        "--problem",
        default="4096x4096x4096",
        help="a shape MxNxK, or the name of a problem of the suite (default: %(default)s)",
    )
    command.add_argument("--source", metavar="FILE", help="measure this .cu file's kernel too")
    command.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)

    from . import table
    from .problems import parse

    try:
        return table.run(parse(options.problem), options.source, options.json)
    except table.KernelFailedError as error:
        return _report(1, error)
    except (ImportError, MemoryError, RuntimeError, ValueError) as error:
        return _report(2, error)


def _report(status: int, error: Exception) -> int:
    print(f"python -m benchmarks: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
