"""What kernels ask of memory, counted in the simulator: exact, without noise, by line of source.

The counts are those of a GPU's warps: a request is one instruction of a warp, and it costs global
memory the sectors of 32 bytes that it touches, shared memory the wavefronts that its bank conflicts
need. They are of the source's accesses: where a compiler merges four loads of a float into one of a
float4, or removes one, a GPU makes fewer. Nothing is known of caches.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from . import report, simulator
from .causes import errors_explained
from .errors import ArgumentError
from .ladder import Version
from .matrix import FLOAT_BYTES
from .multiply import matmul
from .simulated import SMS, Simulated, aligned, simulated_sms
from .simulator.counts import SECTOR_BYTES, WARP, Access, Line, total

FIGURES = {
    "sectors": "of 32 bytes per request of a warp to global memory; in brackets: as few as its "
    "different bytes need",
    "traffic": "bytes of all sectors, in units of A, B and C each moved once",
    "FLOP/byte": "arithmetic intensity: 2·M·N·K over the bytes of all sectors",
    "FMA": "multiply-adds of a warp per request of a warp to load from global, from shared memory",
    "passes": "wavefronts that the banks need for a request to shared memory; in brackets: as few "
    "as its different bytes need",
    "barriers": "that each thread reaches, mbarriers apart",
    "async copies": "by threads",
}


@dataclass(frozen=True)
class Trace:
    """The counts of one version's kernel on one product: of warps' requests to memory, threads'
    asynchronous copies and multiply-adds, and barriers per thread; ``lines`` has them by line,
    ``(file, line)``."""

    version: str
    m: int
    n: int
    k: int
    total: Line
    lines: dict[tuple[str, int], Line]
    barriers: float

    @property
    def bytes(self) -> int:
        """Bytes that move between the SMs and global memory, whole sectors."""
        return SECTOR_BYTES * (self.total.global_loads.units + self.total.global_stores.units)

    @property
    def compulsory_bytes(self) -> int:
        """Bytes of A, B and C."""
        return FLOAT_BYTES * (self.m * self.k + self.k * self.n + self.m * self.n)

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return 2 * self.m * self.n * self.k / self.bytes

    def figures(self) -> dict[str, float | int | None]:
        """The figures that tell the versions apart, by name; None where there is no request."""
        memory: dict[str, float | int | None] = {}
        for name, unit in (("global", "sectors"), ("shared", "wavefronts")):
            for kind in ("load", "store"):
                access: Access = getattr(self.total, f"{name}_{kind}s")
                memory[f"{name}_{kind}_requests"] = access.requests
                memory[f"{unit}_per_{name}_{kind}"] = access.units_per_request
                memory[f"ideal_{unit}_per_{name}_{kind}"] = access.ideal_per_request
        return {
            **memory,
            "bytes": self.bytes,
            "compulsory_bytes": self.compulsory_bytes,
            "intensity": self.intensity,
            "fmas": self.total.fmas,
            "fmas_per_global_load": _per_load(self.total, self.total.global_loads),
            "fmas_per_shared_load": _per_load(self.total, self.total.shared_loads),
            "barriers": self.barriers,
            "asynchronous_copies": self.total.copies,
        }

    def row(self) -> dict[str, Any]:
        """The trace as a row of a JSON document."""
        return {
            "version": self.version,
            "m": self.m,
            "n": self.n,
            "k": self.k,
            **self.figures(),
            "lines": [
                {"file": file, "line": line, **asdict(counts)}
                for (file, line), counts in sorted(self.lines.items())
            ],
        }


def trace(
    version: Version, m: int, n: int, k: int, multiprocessors: int = SMS, *, unrolled: bool = False
) -> Trace:
    """Count what the version's kernel asks of memory for an m×n×k product with beta 0, its work
    dealt out to so many SMs; with ``unrolled`` loops, as ``simulator.counted`` says.

    B has the layout that the version reads. An old kernel is traced by a version whose source is
    its absolute path. Raises what ``matmul`` raises, SimulatorLimitError for a product that would
    take too long among it, and ArgumentError for one without a multiplication.
    """
    if min(m, n, k) < 1:
        raise ArgumentError(
            f"m, n, k: a {m}x{n}x{k} product multiplies nothing that could be counted; all must "
            "be positive"
        )
    with simulator.counted(unrolled) as launches, simulated_sms(multiprocessors):
        Simulated().check_work(m, n, k)  # before its matrices are allocated
        with errors_explained("trace"):
            a, out = _aligned(m, k), _aligned(m, n)
            b = _aligned(k, n) if version.b_layout == "row" else _aligned(n, k).T
        matmul(a, b, out=out, version=version)
    (counts,) = (launch for launch in launches if launch.entry == "sgemm")
    lines: dict[tuple[str, int], Line] = {}
    for place, line in counts.lines.items():
        key = (place.file, place.line) if place else (counts.kernel, 0)
        lines[key] = lines.get(key, Line()) + line
    together = total(lines.values())
    plan = version.plan(m, n, k, multiprocessors)
    threads = version.threads * plan.blocks
    return Trace(version.name, m, n, k, together, lines, together.barriers / threads)


def print_table(traces: Sequence[Trace]) -> None:
    """Print traces side by side."""
    shapes = [f"{one.m}×{one.n}×{one.k}" for one in traces]
    columns: dict[str, list[Any]] = {
        "": [one.version for one in traces],
        "M×N×K": shapes,
        "sectors\n/load": [_beside_ideal(one.total.global_loads) for one in traces],
        "sectors\n/store": [_beside_ideal(one.total.global_stores) for one in traces],
        "traffic": [f"{one.bytes / one.compulsory_bytes:.1f}" for one in traces],
        "FLOP\n/byte": [f"{one.intensity:.2f}" for one in traces],
        "FMA\n/global": [_figure(one.total, one.total.global_loads) for one in traces],
        "FMA\n/shared": [_figure(one.total, one.total.shared_loads) for one in traces],
        "passes\n/load": [_beside_ideal(one.total.shared_loads) for one in traces],
        "passes\n/store": [_beside_ideal(one.total.shared_stores) for one in traces],
        "bar-\nriers": [f"{one.barriers:g}" for one in traces],
        "async\ncopies": [one.total.copies for one in traces],
    }
    if len(set(shapes)) == 1:  # room for the rest
        del columns["M×N×K"]
        print(shapes[0])
    report.print_table(list(columns), list(zip(*columns.values(), strict=True)))


def print_lines(one: Trace) -> None:
    """Print what each line of a kernel asks for."""
    rows: list[tuple[str, str, int, int | None, str, int | None]] = []
    for (file, number), line in sorted(one.lines.items()):
        place = f"{file}:{number}"
        for name, access in (
            ("global load", line.global_loads),
            ("global store", line.global_stores),
            ("shared load", line.shared_loads),
            ("shared store", line.shared_stores),
        ):
            if access.requests:
                floats = access.floats
                rows.append((place, name, access.requests, floats, _beside_ideal(access), None))
        for name, threads in (
            ("asynchronous copy", line.copies),
            ("barrier", line.barriers),
            ("multiply-add", line.fmas),
        ):
            if threads:
                rows.append((place, name, threads // WARP, None, "–", threads))
    report.print_table(
        ("", "what", "requests\nof warps", "floats", "sectors\nor passes", "by\nthreads"), rows
    )


def _aligned(rows: int, cols: int) -> np.ndarray:
    matrix = aligned(rows * cols * FLOAT_BYTES).view(np.float32).reshape(rows, cols)
    matrix.fill(1)
    return matrix


def _per_load(line: Line, loads: Access) -> float | None:
    return line.fmas / WARP / loads.requests if loads.requests else None


def _beside_ideal(access: Access) -> str:
    if not access.requests:
        return "–"
    return f"{access.units_per_request:.3g} ({access.ideal_per_request:.3g})"


def _figure(line: Line, loads: Access) -> str:
    per_load = _per_load(line, loads)
    return "–" if per_load is None else f"{per_load:.3g}"
