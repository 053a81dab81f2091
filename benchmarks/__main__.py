"""``python -m benchmarks``: measuring by hand, and comparing commits.

Exit status: 0 all holds, 1 a result is wrong or slower or a kernel failed, 2 nothing could be told,
with the reason on stderr; 130 it was interrupted.
"""

import argparse
import sys
from importlib import import_module
from typing import NoReturn

from .gpu import NoGpuError

COMMANDS = ("table", "sweep", "tune", "gate", "calibrate", "profile", "counters", "ceiling")
"""The modules that are commands: each has ``add_parser(commands)`` and ``run(options)``."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: list[str] | None = None) -> int:
    parser = _Parser(prog="python -m benchmarks", description="Measures the ladder on this GPU.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = {name: import_module(f".{name}", __package__) for name in COMMANDS}
    for module in modules.values():
        module.add_parser(commands)
    options = parser.parse_args(arguments)

    from sgemm.command import conclude  # not above: asv imports this beside a commit that lacks it

    return conclude(lambda: int(modules[options.command].run(options)), _failed)


def _failed(error: Exception) -> int:
    """Say which error it was, where it is one that is to be expected; the exit status."""
    from sgemm import doctor
    from sgemm.causes import explain

    from .table import KernelFailedError

    if not isinstance(error, ImportError | MemoryError | OSError | RuntimeError | ValueError):
        raise error
    reason = explain(error)
    if "No module named" in reason:
        reason += "; pip install '.[dev]' in the checkout brings what the benchmarks need"
    if isinstance(error, NoGpuError):
        reason += f"; {doctor.why_no_gpu(doctor.examine())}"
        reason += error.instead and f"; {error.instead}"
    print(f"python -m benchmarks: {reason}", file=sys.stderr)
    return 1 if isinstance(error, KernelFailedError) else 2


if __name__ == "__main__":
    sys.exit(main())
