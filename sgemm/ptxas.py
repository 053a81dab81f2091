"""Reads what ptxas reports about a kernel (``--ptxas-options=-v``).

Imports only the standard library, so that the benchmarks can read an old commit's compiler log with
the checkout's parser.
"""

import re
from typing import NamedTuple


class Resources(NamedTuple):
    """What one kernel needs: registers per thread, bytes spilled per thread (stores and loads),
    bytes of static shared memory per block."""

    registers: int
    spill_bytes: int
    shared_bytes: int


def parse(log: str) -> Resources:
    """Read the resources of the one kernel in ``log``; ValueError if it reports none or several."""
    registers = re.findall(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    shared = re.findall(r"(\d+) bytes smem", log)
    if len(registers) != 1 or len(spills) != 1:
        raise ValueError(f"expected ptxas' report on one kernel, found {len(registers)}:\n{log}")
    return Resources(
        registers=int(registers[0]),
        spill_bytes=sum(map(int, spills[0])),
        shared_bytes=sum(map(int, shared)),
    )
