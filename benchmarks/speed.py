"""asv benchmarks: how fast every version is, and cuBLAS FP32 beside them; and how right.

Without a GPU, and for versions that the measured commit lacks, they are n/a.
"""

import json
import os
from math import nan
from pathlib import Path
from typing import Any

from . import gpu, measure
from .child import Record
from .problems import PROBLEMS
from .series import metric, require_measured, series

Measurements = dict[str, dict[str, Record]]


class Speed:
    """Subject and problem to figures; ``measure`` says what a record holds."""

    params = (list(measure.SUBJECTS), list(PROBLEMS))
    param_names = ("version", "problem")
    timeout = 3600.0  # seconds

    def setup_cache(self) -> Measurements:
        """Measure everything, once."""
        if gpu.find() is None:
            if os.environ.get("SGEMM_REQUIRE_GPU") == "1":
                raise RuntimeError("SGEMM_REQUIRE_GPU=1, but there is no GPU")
            nothing = {name: {"skip": "there is no GPU"} for name in PROBLEMS}
            return dict.fromkeys(measure.SUBJECTS, nothing)
        measurements = measure.run()
        _keep(measurements)
        return measurements

    def setup(self, measurements: Measurements, version: str, problem: str) -> None:
        require_measured(measurements[version][problem])

    @series(unit="GFLOPS", version="1", higher_is_better=True)
    def track_gflops(self, measurements: Measurements, version: str, problem: str) -> Any:
        return _samples(measurements[version][problem], "gflops")

    @series(unit="seconds", version="1")
    def track_seconds(self, measurements: Measurements, version: str, problem: str) -> Any:
        return _samples(measurements[version][problem], "seconds")

    @series(unit="of cuBLAS's speed", version="1", higher_is_better=True)
    def track_ratio_to_cublas(self, measurements: Measurements, version: str, problem: str) -> Any:
        if version == measure.CUBLAS:
            return nan  # n/a: it is compared with itself
        return _samples(measurements[version][problem], "ratio_to_cublas")

    @series(unit="of the FFMA peak", version="1", higher_is_better=True)
    def track_share_of_peak(self, measurements: Measurements, version: str, problem: str) -> Any:
        return _samples(measurements[version][problem], "share_of_peak")

    @series(unit="of the bound", version="1")
    def track_error_over_bound(
        self, measurements: Measurements, version: str, problem: str
    ) -> float:
        return float(metric(measurements[version][problem], "error_over_bound"))


def _samples(record: Record, name: str) -> dict[str, Any]:
    """A metric's samples in the form that asv makes its statistics of."""
    return {"samples": metric(record, name), "number": 1}


def _keep(measurements: Measurements) -> None:
    """Write all that was measured, clocks and residuals too, beside asv's environments: asv's own
    results hold the samples alone."""
    folder = Path(os.environ["ASV_CONF_DIR"]) / ".asv" / "measurements"
    folder.mkdir(parents=True, exist_ok=True)
    # asv does not say which commit an environment has that it has not built.
    path = folder / f"{os.environ.get('ASV_COMMIT', 'existing')}.json"
    path.write_text(json.dumps(measurements, indent=1) + "\n")
