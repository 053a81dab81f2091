"""SM cycles, counted by the GPU itself: unlike seconds, they do not change with its clock.

Every SM has a counter that runs on between kernels. A tiny kernel reads them all at its turn in the
stream, before and after the work that is timed.
"""

from pathlib import Path
from statistics import median
from typing import Any


class ClockError(RuntimeError):
    """The SMs' counters and the events do not tell one time: neither can be trusted."""


class Clock:
    """The cycle counters of the current device."""

    def __init__(self) -> None:
        import cupy

        self._sms = cupy.cuda.Device().attributes["MultiProcessorCount"]
        self._kernel = cupy.RawModule(
            code=Path(__file__).with_suffix(".cu").read_text()
        ).get_function("read_counters")

    def read(self) -> Any:
        """Queue a reading of all counters on the current stream; on the device, SMs × (SM, count)
        as int64."""
        import cupy

        counters = cupy.empty((self._sms, 2), cupy.int64)
        self._kernel((self._sms,), (1,), (counters,))
        return counters


def cycles_between(start: Any, end: Any) -> float:
    """Wait for two readings; the cycles from one to the other, as most SMs have counted them.

    Raises ClockError if fewer than half of the SMs are in both readings.
    """
    import cupy

    before, after = (dict(cupy.asnumpy(reading).tolist()) for reading in (start, end))
    in_both = before.keys() & after.keys()
    if 2 * len(in_both) < len(start):
        raise ClockError(f"the cycle counters of only {len(in_both)} SMs were read twice")
    return float(median(after[sm] - before[sm] for sm in in_both))
