"""Measures what warm calls cost on the host, beside CuPy's; prints one JSON object.

A program of its own, as the process of the tests must not compute on the GPU: the instrument
refuses one that another process is on.
"""

import json
from time import perf_counter

import cupy
import numpy as np

import sgemm

SIZES = 64, 1024
ROUNDS = 100
CALLS = 20  # of a round: few, as the GPU's queue takes no more than so many without waiting


def seconds_of_the_host(call) -> float:
    """What a call takes until it returns, in the fastest of many rounds of a few calls."""
    rounds = []
    for _ in range(ROUNDS):
        cupy.cuda.Device().synchronize()
        start = perf_counter()
        for _ in range(CALLS):
            call()
        rounds.append((perf_counter() - start) / CALLS)
    return min(rounds)


def measure(size: int, **options) -> dict[str, float]:
    a, b = (cupy.ones((size, size), np.float32) for _ in range(2))
    calls = {
        "cupy": lambda: cupy.matmul(a, b, **options),
        "sgemm": lambda: sgemm.matmul(a, b, **options),
        "prepared": sgemm.prepare(a, b, **options),
    }
    for call in calls.values():  # until the CPU is as fast as it gets
        seconds_of_the_host(call)
    seconds: dict[str, float] = {}
    for name, call in (*calls.items(), *calls.items()):
        seconds[name] = min(seconds_of_the_host(call), seconds.get(name, 1.0))
    return seconds


if __name__ == "__main__":
    figures = {}
    for size in SIZES:
        figures[f"out {size}"] = measure(size, out=cupy.empty((size, size), np.float32))
        figures[f"a new array {size}"] = measure(size)
    print(json.dumps(figures))
