"""A workload of nothing but launches: what stands beside the latency of small products."""

from pathlib import Path


class EmptyKernel:
    sets = 1

    def __init__(self) -> None:
        import cupy

        code = Path(__file__).with_suffix(".cu").read_text()
        self._kernel = cupy.RawModule(code=code).get_function("empty")

    def launch(self, i: int) -> None:
        self._kernel((1,), (1,), ())

    def poison(self) -> None:
        """It has no outputs."""

    def verify(self, launched: int) -> None:
        """Nothing is always right."""
