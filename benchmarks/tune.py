"""``python -m benchmarks tune``: which tiles make a version the fastest on a GPU.

Candidates are the ladder's versions with other tiles. Those that break a rule of their kernel,
spill registers, do not fit an SM, or have a ceiling (``sgemm/ceiling.py``) far below the best are
pruned by what the compiler says of them, on any machine.
On a GPU those that are left take turns, as in the sweep.
"""

import argparse
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from statistics import median
from typing import Any

from . import environment, gpu
from .ceiling import REFERENCE
from .cublas import Cublas
from .document import document, print_document
from .measure import by_version
from .problems import PROBLEMS, Problem, parse
from .products import Layout, Operands, Product, random_values
from .timing import BLOCKS, CudaStream, Sampler, WrongResultError, sample_blocks

FAR = 0.9  # of the best ceiling of a version's candidates at a problem

TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))  # M×N
MICRO_TILES = ((8, 8), (16, 8))
TILES_WITHOUT_MICRO_TILE = ((8, 32), (16, 32), (32, 32))
DEPTHS = (0.5, 1, 2)  # of the ladder's K
STAGES = (2, 3, 4)  # of a version that has more than two
SLICES = (2, 4)
REGISTERS = 65536  # of an SM

_ASSERTION = re.compile(r'static assertion failed with "([^"]*)"')


@dataclass(frozen=True)
class Candidate:
    """A version of the ladder with other tiles; what the compiler made of it, None if nothing; and
    why it is not worth timing, whatever the problem."""

    version: Any
    found: Any = None
    pruned: str | None = None


def add_parser(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "tune",
        help="which tiles make a version the fastest",
        description="Tries versions with other tiles: prunes them by what the compiler says of "
        "them, and on a GPU times those that are left. Without a GPU it ranks them by their "
        "ceilings.",
    )
    command.add_argument(
        "--version",
        action="append",
        metavar="NAME",
        help="may be repeated (default: those that matmul chooses from)",
    )
    command.add_argument(
        "--problem",
        action="append",
        metavar="MxNxK",
        help="a shape, or a problem of the suite; may be repeated (default: "
        f"{next(iter(PROBLEMS))})",
    )
    command.add_argument(
        "--gpu",
        metavar="NAME",
        help=f"rank for this GPU, and time nothing (default: the one here, else {REFERENCE})",
    )
    command.add_argument("--json", action="store_true", help="print one JSON document")
    command.add_argument(
        "--save", metavar="FILE", help="write the fastest of each problem there, for matmul to use"
    )


def run(options: argparse.Namespace) -> int:
    """Prune, time and print. The exit status: 1 if a result is wrong, else 0."""
    problems = [parse(text) for text in options.problem or [next(iter(PROBLEMS))]]
    for problem in problems:
        if problem != Problem(problem.m, problem.n, problem.k):
            raise ValueError(f"--problem: {problem.name!r} is more than a shape MxNxK")
    device = None if options.gpu else gpu.find()
    if device is None:
        if options.save:
            raise gpu.NoGpuError("--save: there is nothing to save, as nothing is timed")
        if not options.gpu and os.environ.get("SGEMM_REQUIRE_GPU") == "1":
            raise gpu.NoGpuError("SGEMM_REQUIRE_GPU=1, and there is no GPU")
        return _rank(options, problems)
    return _time(options, problems, device)


def _rank(options: argparse.Namespace, problems: Sequence[Problem]) -> int:
    from sgemm.ceiling import gpu_named

    target = gpu_named(options.gpu or REFERENCE)
    tried = _candidates(options, target.arch)
    rows = [row for problem in problems for row in _rows(tried, problem, target)]
    surroundings = {"gpu": target.name, "peak_gflops": target.peak_gflops, "timed": False}
    _print(options, surroundings, rows)
    return 0


def _time(options: argparse.Namespace, problems: Sequence[Problem], device: gpu.Gpu) -> int:
    from sgemm import choices

    monitor = gpu.Monitor(device)
    monitor.require_alone(own_processes=0)
    rows = []
    with CudaStream() as stream:
        surroundings = environment.describe(device, monitor, Cublas(stream.stream))
        target = _described(device, surroundings)
        tried = _candidates(options, target.arch)
        values = random_values(max(map(Operands.floats, problems)))
        for problem in problems:
            of_problem = _rows(tried, problem, target)
            survivors = {
                position: tried[position].version
                for position, row in enumerate(of_problem)
                if not row["pruned"]
            }
            measured = _measure(problem, list(survivors.values()), stream, monitor, values)
            for position, figures in zip(survivors, measured, strict=True):
                of_problem[position] |= figures
            rows += of_problem
        monitor.require_alone(own_processes=1)
    _print(options, surroundings | {"timed": True}, rows)
    if options.save:
        choices.save(options.save, surroundings, _fastest(rows, problems))
    return int(any(row["wrong"] for row in rows))


def _described(device: gpu.Gpu, surroundings: Mapping[str, Any]) -> Any:
    """This GPU as the model of the ceilings needs it; what it does not report is no limit."""
    from sgemm.ceiling import Gpu

    memory_mhz, bits = surroundings["max_memory_mhz"], surroundings["memory_bus_bits"]
    return Gpu(
        name=device.name,
        arch="sm_{}{}".format(*device.compute_capability),
        sms=surroundings["sms"],
        mhz=surroundings["max_sm_mhz"] or 1,
        gigabytes_per_second=2 * memory_mhz * bits / 8e3 if memory_mhz else inf,
    )


def _candidates(options: argparse.Namespace, arch: str) -> list[Candidate]:
    """What is tried of each version, the ladder's own tiles first."""
    from sgemm import LADDER
    from sgemm.compiler import require_runs_on, runs_on
    from sgemm.versions import resolve

    if options.version:
        versions = [resolve(name) for name in options.version]
        for version in versions:
            require_runs_on(version, arch)
    else:
        versions = [v for v in LADDER.values() if v.peak_share and runs_on(v, arch)]
    reshaped = [(version, other) for version in versions for other in with_other_tiles(version)]
    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        examined = compilers.map(lambda pair: examine(pair[0], pair[1], arch), reshaped)
        return without_repetitions(_progress(examined, "compiling", total=len(reshaped)))


def without_repetitions(tried: Iterable[Candidate]) -> list[Candidate]:
    """The candidates, with those pruned of which the compiler makes the same as of an earlier one
    with another number of blocks per SM, where that is all that this number is for."""
    made: dict[tuple[Any, str], int] = {}
    found = []
    for one in tried:
        version = one.version
        same = version if version.stream_k else replace(version, blocks_per_sm=1)
        blocks_per_sm = made.setdefault((same, repr(one.found)), version.blocks_per_sm)
        if not one.pruned and blocks_per_sm != version.blocks_per_sm:
            one = replace(one, pruned=f"the same machine code as for {blocks_per_sm} blocks/SM")
        found.append(one)
    return found


def with_other_tiles(version: Any) -> list[Any]:
    """The version itself, and with each of the tiles that are worth a try."""
    tile_m, tile_n, depth = version.tile
    in_registers = version.micro_tile != (1, 1)
    tiles = TILES if in_registers else TILES_WITHOUT_MICRO_TILE
    found = {version: None}  # in order, each once
    for tile, micro_tile, share, stages, slices in product(
        dict.fromkeys([(tile_m, tile_n), *tiles]),
        dict.fromkeys([version.micro_tile, *(MICRO_TILES if in_registers else ())]),
        DEPTHS if depth > 1 else (1,),
        STAGES if version.stages > 2 else (version.stages,),
        SLICES if version.slices > 1 else (version.slices,),
    ):
        shape = (*tile, int(depth * share)), micro_tile
        one = version.reshaped(*shape, 1, stages, slices)
        most = version.blocks_per_sm
        if in_registers and one.threads:
            sums = micro_tile[0] * micro_tile[1]
            most = REGISTERS // (one.threads * (sums + sums // 2 + 32))
        for blocks_per_sm in (most, most * 3 // 4):  # the fewer, the more registers for each thread
            found[version.reshaped(*shape, max(1, blocks_per_sm), stages, slices)] = None
    return list(found)


def examine(version: Any, other: Any, arch: str) -> Candidate:
    """Compile a version with other tiles, and tell whether it is worth timing."""
    from sgemm import SgemmError, compile
    from sgemm.inspection import inspect

    if version.threads != version.multipliers and other.threads != version.threads:
        return Candidate(other, pruned=f"{other.threads} threads; it is for {version.threads}")
    try:
        found = inspect(other, arch)
        pruned = _why_not(other, found)
        if not pruned:
            compile(other, arch, vector=False)  # which operands that allow no float4 need
    except SgemmError as error:
        rules = dict.fromkeys(_ASSERTION.findall(str(error)))
        return Candidate(other, pruned="; ".join(rules) or _last_line(error))
    return Candidate(other, found, pruned)


def _why_not(version: Any, found: Any) -> str | None:
    """What the compiler's figures say against a version."""
    if found.spill_bytes:
        return f"spills {found.spill_bytes} bytes per thread"
    if found.occupancy is None:
        return f"what an SM of {found.arch} holds is not known"
    if found.occupancy.blocks < version.blocks_per_sm:
        return f"an SM holds {found.occupancy.blocks} of its blocks ({found.occupancy.limiter})"
    return None


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()


def _rows(tried: Sequence[Candidate], problem: Problem, target: Any) -> list[dict[str, Any]]:
    """A row for each candidate at a problem, in the same order, with nothing timed yet."""
    from sgemm.ceiling import ceiling

    shape = problem.m, problem.n, problem.k
    limits = [
        None if one.pruned else ceiling(one.version, one.found, target, *shape) for one in tried
    ]
    best: dict[str, float] = {}  # of a version's candidates
    for one, limit in zip(tried, limits, strict=True):
        if limit:
            best[one.version.name] = max(best.get(one.version.name, 0), limit.share)
    rows = []
    for one, limit in zip(tried, limits, strict=True):
        version, found, pruned = one.version, one.found, one.pruned
        if limit and limit.share < FAR * best[version.name]:
            pruned = f"its ceiling is far below {best[version.name]:.1%}"
        rows.append(
            {
                "problem": problem.name,
                "shape": shape,
                "version": version.name,
                "tile": version.tile,
                "micro_tile": version.micro_tile,
                "blocks_per_sm": version.blocks_per_sm,
                "stages": version.stages,
                "slices": version.slices,
                "threads": version.threads,
                "dynamic_shared_bytes": version.dynamic_shared_bytes,
                "registers": found and found.registers,
                "spill_bytes": found and found.spill_bytes,
                "occupancy": found and found.occupancy and found.occupancy.share,
                "ceiling": limit and limit.share,
                "limit": limit and limit.limit,
                "pruned": pruned,
                "gflops": None,
                "seconds": [],
                "wrong": None,
            }
        )
    return rows


def _measure(
    problem: Problem,
    versions: Sequence[Any],
    stream: CudaStream,
    monitor: gpu.Monitor,
    values: Any,
) -> list[dict[str, Any]]:
    """The figures of each version at a problem, all timed in turns."""
    operands: dict[Layout, Operands] = {}
    for version in versions:
        if version.b_layout not in operands:
            operands[version.b_layout] = Operands(problem, version.b_layout, values)
    samplers = [
        Sampler(Product(by_version(version), operands[version.b_layout]), stream, monitor)
        for version in versions
    ]
    wrong: dict[Sampler, str] = {}
    for sampler in _progress(samplers, f"{problem.name}: warming up"):
        _unless_wrong(sampler, sampler.prepare, wrong)
    right = [sampler for sampler in samplers if sampler not in wrong]
    for turn in _progress(range(BLOCKS), f"{problem.name}: measuring"):
        sample_blocks(right, turn)
    for sampler in right:
        _unless_wrong(sampler, sampler.finish, wrong)
    figures = []
    for sampler in samplers:
        seconds = [] if sampler in wrong else [sample.seconds for sample in sampler.samples]
        gflops = problem.flops / median(seconds) / 1e9 if seconds else None
        figures.append({"gflops": gflops, "seconds": seconds, "wrong": wrong.get(sampler)})
    return figures


def _unless_wrong(sampler: Sampler, step: Callable[[], None], wrong: dict[Sampler, str]) -> None:
    """Note with the sampler that its result is wrong, or that its kernel does not start."""
    from sgemm import KernelError
    from sgemm.errors import GpuUnusableError

    try:
        step()
    except GpuUnusableError:
        raise
    except (WrongResultError, KernelError) as error:
        wrong[sampler] = str(error)


def _fastest(rows: Sequence[dict[str, Any]], problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """The fastest row of each problem that has one."""
    timed = [row for row in rows if row["gflops"]]
    return [
        max(of_problem, key=lambda row: row["gflops"])
        for problem in problems
        if (of_problem := [row for row in timed if row["problem"] == problem.name])
    ]


def _progress(steps: Any, what: str, total: int | None = None) -> Any:
    from rich.console import Console
    from rich.progress import track

    return track(steps, what, total=total, console=Console(stderr=True), transient=True)


def _print(
    options: argparse.Namespace, surroundings: dict[str, Any], rows: Sequence[dict[str, Any]]
) -> None:
    """Best first: by what was measured, else by the ceiling; then what was pruned."""
    from rich.console import Console

    rows = sorted(
        rows, key=lambda row: (row["gflops"] or 0, not row["pruned"], row["ceiling"] or 0)
    )[::-1]
    if options.json:
        print_document(document("tune", surroundings, rows))
        return
    console = Console()
    if not console.is_terminal:
        console.width = 160  # a file or a pipe has no width of its own
    for problem in dict.fromkeys(row["problem"] for row in rows):
        of_problem = [row for row in rows if row["problem"] == problem]
        console.print(_table(f"{problem} on {surroundings['gpu']}", of_problem))
    if not surroundings["timed"]:
        console.print("Nothing was timed: the order is that of the ceilings (docs/ceiling.md).")


def _table(title: str, rows: Sequence[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    headings = ("version", "tile", "per thread", "blocks/SM", "stages", "slices", "threads")
    for heading in (*headings, "registers", "occupancy", "ceiling", "GFLOPS"):
        table.add_column(heading, justify="left" if heading == "version" else "right")
    table.add_column("limited by; or why it is not timed")
    for row in rows:
        table.add_row(
            row["version"],
            "×".join(map(str, row["tile"])),
            "×".join(map(str, row["micro_tile"])),
            *(str(row[key]) for key in ("blocks_per_sm", "stages", "slices", "threads")),
            "–" if row["registers"] is None else str(row["registers"]),
            _percent(row["occupancy"]),
            _percent(row["ceiling"]),
            f"{row['gflops']:,.0f}" if row["gflops"] else "–",
            row["wrong"] or row["pruned"] or row["limit"],
        )
    return table


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
