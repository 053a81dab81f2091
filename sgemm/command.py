"""How ``python -m sgemm`` and ``python -m benchmarks`` end, and what becomes of their output."""

import io
import os
import sys
from collections.abc import Callable

UNKNOWN, INTERRUPTED = 2, 130


def conclude(command: Callable[[], int], failed: Callable[[Exception], int]) -> int:
    """The exit status of a command that prints to standard output: its own, or where it raised an
    error what ``failed`` makes of that. Ctrl-C, and a reader who has seen enough, end it without a
    word."""
    if sys.stdout is None:
        return failed(OSError("standard output is closed"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an ASCII terminal shows × as ?
    try:
        status = command()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return UNKNOWN
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich's end, with status 1
            return UNKNOWN
        raise
    except Exception as error:
        return failed(error)
    finally:
        _flush()


def _flush() -> None:
    """Python flushes its output once more at its end, where a failure would be told again, or be
    the exit status."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
