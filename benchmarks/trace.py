"""asv benchmarks: what every version asks of memory; on any machine with a C++ compiler.

The checkout's simulator counts for the commit's own kernels, with the geometry that the commit's
ladder gives them. The counts are exact, so that any change is one of the kernels.
"""

import dataclasses
import importlib.util
import runpy
import sys
from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path
from typing import Any

from . import child
from .checkout import LADDER, ROOT, load
from .series import metric, require_measured, series

SHAPES = ("256x256x256", "255x257x63")
"""Of whole tiles, in float4s; and of what no version finds easy."""

_TIMEOUT_SECONDS = 300.0

Records = dict[str, child.Record]


class Trace:
    """Version and shape to counts; ``sgemm.trace`` says what they are. Those of what a version
    never does, such as loads from shared memory, are n/a."""

    params = (list(LADDER), list(SHAPES))
    param_names = ("version", "shape")
    timeout = 1800.0  # seconds

    def setup_cache(self) -> Records:
        """Count every version on every shape."""
        keys = [key_of(version, shape) for version in LADDER for shape in SHAPES]
        return child.collect_at_once("trace", [], keys, _TIMEOUT_SECONDS)

    def setup(self, records: Records, version: str, shape: str) -> None:
        require_measured(records[key_of(version, shape)])

    @series(unit="sectors per request", version="2")
    def track_sectors_per_global_load(self, records: Records, version: str, shape: str) -> float:
        return _figure(records, version, shape, "sectors_per_global_load")

    @series(unit="sectors per request", version="1")
    def track_sectors_per_global_store(self, records: Records, version: str, shape: str) -> float:
        return _figure(records, version, shape, "sectors_per_global_store")

    @series(unit="wavefronts per request", version="1")
    def track_wavefronts_per_shared_load(self, records: Records, version: str, shape: str) -> float:
        return _figure(records, version, shape, "wavefronts_per_shared_load")

    @series(unit="wavefronts per request", version="2")
    def track_wavefronts_per_shared_store(
        self, records: Records, version: str, shape: str
    ) -> float:
        return _figure(records, version, shape, "wavefronts_per_shared_store")

    @series(unit="bytes", version="2")
    def track_bytes(self, records: Records, version: str, shape: str) -> float:
        return _figure(records, version, shape, "bytes")

    @series(unit="multiply-adds", version="1")
    def track_fmas(self, records: Records, version: str, shape: str) -> float:
        return _figure(records, version, shape, "fmas")

    @series(unit="multiply-adds per load", version="1", higher_is_better=True)
    def track_fmas_per_global_load(self, records: Records, version: str, shape: str) -> float:
        return _figure(records, version, shape, "fmas_per_global_load")

    @series(unit="multiply-adds per load", version="1", higher_is_better=True)
    def track_fmas_per_shared_load(self, records: Records, version: str, shape: str) -> float:
        return _figure(records, version, shape, "fmas_per_shared_load")

    @series(unit="barriers per thread", version="1")
    def track_barriers(self, records: Records, version: str, shape: str) -> float:
        return _figure(records, version, shape, "barriers")

    @series(unit="copies", version="1")
    def track_asynchronous_copies(self, records: Records, version: str, shape: str) -> float:
        return _figure(records, version, shape, "asynchronous_copies")


def answer(
    args: Sequence[str], keys: Sequence[str], emit: Callable[[str, child.Record], None]
) -> None:
    """What the child does: count the installed package's kernels, with the checkout's package."""
    package = _installed_package()
    ladder = runpy.run_path(str(package / "ladder.py"))["LADDER"]
    sys.path.insert(0, str(ROOT))
    import sgemm
    from sgemm.trace import trace

    for key in keys:
        name, shape = key.split()
        if name not in ladder:
            emit(key, {"skip": f"this commit has no {name}"})
            continue
        version = _with_geometry(sgemm.LADDER[name], ladder[name], package)
        try:
            emit(key, trace(version, *map(int, shape.split("x"))).figures())
        except sgemm.MissingError as error:
            emit(key, {"skip": str(error)})
        except sgemm.SgemmError as error:
            emit(key, {"error": load("errors").in_one_line(error)})


def key_of(version: str, shape: str) -> str:
    """What the record of a version on a shape is called."""
    return f"{version} {shape}"


def _figure(records: Records, version: str, shape: str, name: str) -> float:
    record = records[key_of(version, shape)]
    if "error" not in record and record[name] is None:
        return nan
    return float(metric(record, name))


def _installed_package() -> Path:
    spec = importlib.util.find_spec("sgemm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))


def _with_geometry(version: Any, installed: Any, package: Path) -> Any:
    """The checkout's entry of a version with the values of the commit's, whose fields may be
    fewer, and the commit's source."""
    kernels = package / "kernels"
    if not kernels.is_dir():
        kernels = package.parent / "kernels"
    known = {field.name for field in dataclasses.fields(version)}
    values = {
        field.name: getattr(installed, field.name)
        for field in dataclasses.fields(installed)
        if field.name in known
    }
    return dataclasses.replace(version, **values | {"source": str(kernels / installed.source)})
