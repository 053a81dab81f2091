"""What the asv benchmarks have in common.

A class measures everything once, in ``setup_cache``, as records: ``{"skip": why}`` where there is
nothing to measure (n/a), ``{"error": why}`` where measuring failed, else metric to value. Each
benchmark reads one metric of one record, in a process that needs no CUDA.
"""

from collections.abc import Callable
from math import isfinite
from typing import Any

from .child import Record


def series(*, unit: str, version: str, higher_is_better: bool = False) -> Callable[[Any], Any]:
    """Mark a benchmark. asv hides results of another ``version``, and would make one of the source
    code: raise it where figures are no longer comparable, and never otherwise. asv keeps what is
    marked, so whoever reads its files finds ``higher_is_better`` there."""

    def mark(benchmark: Any) -> Any:
        benchmark.unit = unit
        benchmark.version = version
        benchmark.higher_is_better = higher_is_better
        return benchmark

    return mark


def require_measured(record: Record) -> None:
    """Raise NotImplementedError, asv's n/a, if there was nothing to measure."""
    if "skip" in record:
        raise NotImplementedError(record["skip"])


def metric(record: Record, name: str) -> Any:
    """One metric of a record, a figure or a list of samples; RuntimeError if measuring failed, or
    gave no figure: asv would take NaN for n/a."""
    if "error" in record:
        raise RuntimeError(record["error"])
    value = record[name]
    samples = value if isinstance(value, list) else [value]
    if not samples or not all(map(isfinite, samples)):
        raise RuntimeError(f"{name} is no figure: {value}")
    return value
