"""The version and the tiles that were measured to be the fastest on a GPU.

``python -m benchmarks tune --save FILE`` writes them; docs/tuning.md has the format. ``matmul``
takes them from the folder that SGEMM_CHOICES names, else from those of this package.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from pathlib import Path
from typing import Any

from .errors import ArgumentError
from .ladder import FLOAT_BYTES, LADDER, Version, fastest
from .versions import resolve

SCHEMA = "sgemm/choices/1"
WITHIN = 1.1
"""A choice holds where each of M, N and K is at most so many times the measured one, or less."""

MAX_SIZE = 2**31 - 1
MAX_THREADS = 1024  # of a block, as the next two on any GPU
MAX_THREADS_OF_SM = 2048
MAX_SHARED_BYTES = 227 * 1024  # of a block
SLICES = (1, 2, 4)  # kernels/micro_tile.cuh

OWN_FOLDER = Path(__file__).parent / "choices"


@dataclass(frozen=True)
class Choice:
    """What is the fastest at m×n×k."""

    m: int
    n: int
    k: int
    version: Version

    def distance(self, m: int, n: int, k: int) -> float:
        """The largest ratio between a size and the measured one."""
        pairs = ((m, self.m), (n, self.n), (k, self.k))
        return max(max(sizes) / max(1, min(sizes)) for sizes in pairs)


def choose(
    names: tuple[str, ...], m: int, n: int, k: int, gpu_name: str, multiprocessors: int
) -> Version:
    """Which of these versions, and with which tiles, should compute an m×n×k product soonest: what
    was measured on this GPU at the nearest shape, or where none is near, ``ladder.fastest``. The
    simulator, whose ``gpu_name`` is empty, has no choices."""
    return _choose(_folder(), names, m, n, k, gpu_name, multiprocessors)


def measured_on(gpu_name: str) -> tuple[Choice, ...]:
    """What was measured on a GPU of that name; ArgumentError as ``load``."""
    return load(_folder(), gpu_name)


def _folder() -> str:
    return os.environ.get("SGEMM_CHOICES", "")


@lru_cache(4096)
def _choose(
    folder: str,
    names: tuple[str, ...],
    m: int,
    n: int,
    k: int,
    gpu_name: str,
    multiprocessors: int,
) -> Version:
    measured = load(folder, gpu_name) if gpu_name else ()
    known = [choice for choice in measured if choice.version.name in names]
    nearest = min(known, key=lambda choice: choice.distance(m, n, k), default=None)
    if nearest is not None and nearest.distance(m, n, k) <= WITHIN:
        return nearest.version
    return LADDER[fastest(names, m, n, k, multiprocessors)]


@lru_cache(16)
def load(folder: str, gpu_name: str) -> tuple[Choice, ...]:
    """What is chosen for a GPU by the files of a folder, ``""`` for the package's own, of which
    there need be none. ArgumentError for a folder or a file that cannot be used."""
    if folder and not Path(folder).is_dir():
        raise ArgumentError(
            f"SGEMM_CHOICES: {folder!r} is no folder; name the one with the files that "
            "python -m benchmarks tune --save has written, or unset it"
        )
    paths = sorted((Path(folder) if folder else OWN_FOLDER).glob("*.json"))
    return tuple(choice for path in paths for choice in _read(path, gpu_name))


def _read(path: Path, gpu_name: str) -> list[Choice]:
    """What a file chooses, if it is for that GPU."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise ValueError(f"its schema is {content['schema']!r}, not {SCHEMA!r}")
        if content["gpu"] != gpu_name:
            return []
        return [_choice(found) for found in content["choices"]]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ArgumentError(
            f"{path}: no choice of tiles ({type(error).__name__}: {error}); write it anew with "
            "python -m benchmarks tune --save, or remove it"
        ) from error


def _choice(found: Mapping[str, Any]) -> Choice:
    m, n, k = map(index, found["shape"])
    tile_m, tile_n, tile_k = map(index, found["tile"])
    micro_m, micro_n = map(index, found["micro_tile"])
    blocks_per_sm, stages, slices = (
        index(found[key]) for key in ("blocks_per_sm", "stages", "slices")
    )
    if min(m, n, k, tile_m, tile_n, tile_k, micro_m, micro_n, blocks_per_sm, stages, slices) < 1:
        raise ValueError("a size is not positive")
    if max(m, n, k) > MAX_SIZE:
        raise ValueError(f"a shape of {m}×{n}×{k}")
    version = LADDER[found["version"]].reshaped(
        (tile_m, tile_n, tile_k), (micro_m, micro_n), blocks_per_sm, stages, slices
    )
    _require_possible(version)
    return Choice(m, n, k, resolve(version))


def _require_possible(version: Version) -> None:
    """Raises ValueError for what no version can have. Its kernel's own assertions tell the rest,
    when it is compiled."""
    tile_m, tile_n, tile_k = version.tile
    micro_m, micro_n = version.micro_tile
    if tile_m % micro_m or tile_n % micro_n:
        raise ValueError(f"a tile of {tile_m}×{tile_n} is not made of {micro_m}×{micro_n}")
    if version.slices not in SLICES:
        raise ValueError(f"{version.slices} slices, not one of {SLICES}")
    if version.threads > MAX_THREADS:
        raise ValueError(f"{version.threads} threads, more than {MAX_THREADS}")
    if version.threads * version.blocks_per_sm > MAX_THREADS_OF_SM:
        raise ValueError(f"{version.blocks_per_sm} blocks per SM of {version.threads} threads")
    buffers = FLOAT_BYTES * version.stages * tile_k * (tile_m + tile_n)
    if max(buffers, version.dynamic_shared_bytes) > MAX_SHARED_BYTES:
        raise ValueError(f"{version.stages} stages of {tile_m}×{tile_n}×{tile_k} fit no SM")


def save(path: str, environment: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write what was measured to be the fastest: ``rows`` of ``python -m benchmarks tune``. At any
    time the file is whole, as ``matmul`` may read it."""
    geometry = ("version", "tile", "micro_tile", "blocks_per_sm", "stages", "slices")
    content = {
        "schema": SCHEMA,
        "gpu": environment["gpu"],
        "compute_capability": environment["compute_capability"],
        "environment": environment,
        "choices": [
            {"shape": row["shape"]} | {key: row[key] for key in (*geometry, "gflops", "seconds")}
            for row in rows
        ],
    }
    file = Path(path).resolve()
    unfinished = file.with_name(f"{file.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)
