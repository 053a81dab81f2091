"""Measures with the instrument what its figures must agree with; prints one JSON object.

A program of its own, because the instrument refuses a GPU that another process is on.
"""

import json
from statistics import median
from typing import Any

from benchmarks import gpu, measure, timing
from benchmarks.problems import parse
from benchmarks.products import Operands, Product, random_values

CAP_SECONDS = 1.0
LAUNCHES = 50  # of one event pair
REPEATS = 9


class Instrument:
    """The fastest version on this GPU, and what times it."""

    def __init__(self, stream: timing.CudaStream, monitor: gpu.Monitor) -> None:
        self._stream, self._monitor = stream, monitor

    def product(self, name: str, warm: bool = False) -> Product:
        problem = parse(name)
        values = random_values(Operands.floats(problem))
        operands = Operands(problem, "row", values, warm=warm)
        return Product(measure.by_version(None), operands)

    def samples(
        self, name: str, batch_seconds: float = timing.BATCH_SECONDS, warm: bool = False
    ) -> dict[str, Any]:
        """A problem's samples, and how many launches and seconds one of their batches takes."""
        usual, timing.BATCH_SECONDS = timing.BATCH_SECONDS, batch_seconds
        sampler = timing.Sampler(self.product(name, warm), self._stream, self._monitor)
        sampler.prepare()
        timing.BATCH_SECONDS = usual
        while not timing.reason_to_stop([sampler], CAP_SECONDS):
            sampler.sample()
        sampler.finish()
        seconds = [sample.seconds for sample in sampler.samples]
        launches = sampler.plan.launches_per_batch
        return {"seconds": seconds, "launches": launches, "batch": launches * min(seconds)}

    def by_events(self, name: str) -> float:
        """Seconds by CUDA events around launches, without the instrument."""
        import cupy

        product = self.product(name)
        product.launch(0)
        found = []
        for _ in range(REPEATS):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            product.launch(0)  # keeps the GPU busy until the rest is queued
            start.record()
            for i in range(LAUNCHES):
                product.launch(i % product.sets)
            end.record()
            end.synchronize()
            found.append(cupy.cuda.get_elapsed_time(start, end) / 1000 / LAUNCHES)
        return median(found)


def main() -> None:
    device = gpu.find()
    assert device is not None
    monitor = gpu.Monitor(device)
    monitor.require_alone(own_processes=0)
    with timing.CudaStream() as stream:
        instrument = Instrument(stream, monitor)
        figures = {
            "peak GFLOPS": measure.measure_peak(stream, monitor),
            "empty kernel": measure.measure_empty_kernel(stream, monitor),
            "first": instrument.samples("1024x1024x1024"),
            "half the depth": instrument.samples("4096x4096x2048"),
            "whole depth": instrument.samples("4096x4096x4096"),
            "by events": instrument.by_events("4096x4096x4096"),
            "one launch a batch": instrument.samples("4096x4096x4096", 1e-9),
            "ten launches a batch": instrument.samples("4096x4096x4096", 0.03),
            "inputs": random_values(1 << 20).tolist(),
            "cold L2": instrument.samples("256x256x256"),
            "warm L2": instrument.samples("256x256x256", warm=True),
            "tiny": instrument.samples("16x16x16"),
            "few": instrument.samples("64x64x64", 1e-4, warm=True),
            "many": instrument.samples("64x64x64", 0.03, warm=True),
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
