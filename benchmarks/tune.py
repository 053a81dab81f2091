"""``python -m benchmarks tune``: which version and which tiles are the fastest on a GPU.

Candidates are the ladder's versions with other tiles. Those that break a rule of their kernel,
spill registers, do not fit an SM, or are predicted to be far slower than the best are pruned by
what the compiler says of them, on any machine.
On a GPU those that are left have a short sample each, and the fastest of them take turns, as in the
sweep.
"""

import argparse
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from time import monotonic
from typing import Any

from . import environment, gpu, sweep, timing
from .ceiling import REFERENCE
from .cublas import Cublas
from .document import document, print_document
from .measure import by_version
from .problems import PROBLEMS, Problem, parse
from .products import Layout, Operands, Product, random_values
from .progress import progress
from .tables import print_table
from .timing import BLOCKS, CudaStream, Sampler, WrongResultError, sample_blocks

FAR = 1.5  # times the least time that is predicted at a problem: what takes longer is not timed
NEAR = 1.05  # times the least short sample: a slower tile is not tried with other buffers
CLOSE = 1.02  # times the least short sample: what takes longer is not timed to the end
FINALISTS = 3  # that are timed to the end, with the version that matmul takes by its rule
WORTH = 1.01  # so many times as fast as that one must be what is saved instead

START_SECONDS = 5e-6  # of a product, beside its steps of k; measured on an H200

Pairs = tuple[tuple[int, int], ...]

TILES: Pairs = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))  # M×N
MICRO_TILES: Pairs = ((8, 8), (16, 8))
TILES_WITHOUT_MICRO_TILE: Pairs = ((8, 32), (16, 32), (32, 32))
# Where a kernel is for one number of threads, few tiles of many have it:
SIDES = (32, 64, 96, 128, 256)
TILES_OF_THREADS: Pairs = tuple(product(SIDES, SIDES))
MICRO_TILES_OF_THREADS: Pairs = (  # the earlier, the fewer loads from shared memory per FFMA
    *((16, 8), (8, 16), (8, 12), (8, 8), (24, 4), (16, 4), (8, 4)),
)
DEPTHS = (1, 0.5, 2)  # of the ladder's K
LEAST_DEPTH = 8
STAGES = (2, 3, 4)  # of a version that has more than two
SLICES = (2, 4)
REGISTERS = 65536  # of an SM
DEALS_OUT_REGISTERS = (9, 0)  # a kernel that needs such a GPU: for as many blocks as in the ladder

SMALL = Problem(32, 32, 32)
SWEPT = tuple(one for one in sweep.PROBLEMS if one == Problem(one.m, one.n, one.k))
"""The problems of the sweep that are a shape and no more."""

_FIGURE = re.compile(r"\d[\d.]*")
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
        "them, and on a GPU times those that are left. Without a GPU it ranks them by the times "
        "that are predicted.",
    )
    command.add_argument(
        "--version",
        action="extend",
        nargs="+",
        metavar="NAME",
        help="what to try (default: those that matmul chooses from)",
    )
    command.add_argument(
        "--problem",
        action="extend",
        nargs="+",
        metavar="MxNxK",
        help=f"shapes, or problems of the suite (default: {next(iter(PROBLEMS))})",
    )
    command.add_argument(
        "--sweep",
        action="store_true",
        help=f"the problems of the sweep that are a shape and no more, {len(SWEPT)} of them",
    )
    command.add_argument(
        "--seconds",
        type=_seconds,
        default=inf,
        metavar="N",
        help="time nothing more after N seconds in all, of which all problems have the same share",
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


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return seconds


def run(options: argparse.Namespace) -> int:
    """Prune, time and print. The exit status: 1 if a result is wrong, else 0."""
    deadline = monotonic() + options.seconds
    problems = [parse(text) for text in options.problem or []]
    for problem in problems:
        if problem != Problem(problem.m, problem.n, problem.k):
            raise ValueError(f"--problem: {problem.name!r} is more than a shape MxNxK")
    problems += SWEPT if options.sweep else ()
    problems = list(dict.fromkeys(problems)) or [next(iter(PROBLEMS.values()))]
    problems.sort(key=lambda problem: problem.flops)  # the last ones may overrun their time
    device = None if options.gpu else gpu.find()
    if device is None:
        if options.save:
            raise gpu.NoGpuError("--save: there is nothing to save, as nothing is timed")
        if not options.gpu and os.environ.get("SGEMM_REQUIRE_GPU") == "1":
            raise gpu.NoGpuError("SGEMM_REQUIRE_GPU=1, and there is no GPU")
        return _rank(options, problems)
    if options.save:
        _require_writable(Path(options.save))
    return _time(options, problems, device, deadline)


def _require_writable(path: Path) -> None:
    """Raises ValueError where ``choices.save`` could not write, before there is much to lose."""
    try:
        if path.exists():
            if not path.is_file():
                raise OSError("it is no file")
            path.open("r+b").close()
        with TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"--save: {path} cannot be written: {reason}") from error


def _rank(options: argparse.Namespace, problems: Sequence[Problem]) -> int:
    from sgemm.ceiling import gpu_named

    target = gpu_named(options.gpu or REFERENCE)
    tried = _candidates(_versions(options.version, target.arch), target.arch)
    rows = [row for problem in problems for row in _rows(tried, problem, target).values()]
    surroundings = {"gpu": target.name, "peak_gflops": target.peak_gflops, "timed": False}
    _print(options, surroundings, rows)
    return 0


def _time(
    options: argparse.Namespace, problems: Sequence[Problem], device: gpu.Gpu, deadline: float
) -> int:
    import cupy

    from sgemm import LADDER, choices
    from sgemm.ladder import fastest, names_for

    monitor = gpu.Monitor(device)
    monitor.require_alone(own_processes=0)
    rows: list[dict[str, Any]] = []
    chosen = []
    with CudaStream() as stream:
        cublas = Cublas(stream.stream)
        surroundings = environment.describe(device, monitor, cublas)
        target = _described(device, surroundings)
        names = names_for(device.compute_capability)
        by_rule = {
            problem: LADDER[fastest(names, problem.m, problem.n, problem.k, target.sms)]
            for problem in problems
        }
        versions = _versions(options.version, target.arch)
        names_tried = [version.name for version in versions]
        with ThreadPoolExecutor(1) as meanwhile:
            candidates = meanwhile.submit(_candidates, versions, target.arch, by_rule.values())
            values = random_values(max(map(Operands.floats, [SMALL, *problems])))
            _compile_the_check(cublas, values)
            tried = candidates.result()
        for position, problem in enumerate(progress(problems)):
            of_problem = _rows(tried, problem, target, by_rule[problem])
            now = monotonic()
            until = now + (deadline - now) / (len(problems) - position)
            contest = Contest(problem, names_tried, by_rule[problem], stream, monitor, values)
            _hold(contest, of_problem, until)
            cupy.get_default_memory_pool().free_all_blocks()  # the next one needs other sizes
            monitor.require_alone(own_processes=1)
            rows += of_problem.values()
            chosen += _choices(list(of_problem.values()))
            if options.save:  # a run that is cut short has saved what it has found
                choices.save(options.save, surroundings, chosen)
    _print(options, surroundings | {"timed": True}, rows)
    return int(any(row["wrong"] for row in rows))


def _compile_the_check(cublas: Cublas, values: Any) -> None:
    """Check a small product twice: CuPy takes many seconds to compile what the first check needs,
    and that of a result that is equal to an earlier one."""
    small = Product(cublas.multiply, Operands(SMALL, "row", values))
    small.poison()
    small.launch(0)
    for _ in range(2):
        small.verify(1)


def _described(device: gpu.Gpu, surroundings: Mapping[str, Any]) -> Any:
    """This GPU as the model of the ceilings needs it; what it does not report is no limit."""
    from sgemm.ceiling import Gpu

    memory_mhz, bits = surroundings["max_memory_mhz"], surroundings["memory_bus_bits"]
    return Gpu(
        name=device.name,
        arch=device.arch,
        sms=surroundings["sms"],
        mhz=surroundings["max_sm_mhz"] or 1,
        gigabytes_per_second=2 * memory_mhz * bits / 8e3 if memory_mhz else inf,
    )


def _versions(names: Sequence[str] | None, arch: str) -> list[Any]:
    """The versions of these names; without names those that matmul chooses from."""
    from sgemm import LADDER
    from sgemm.compiler import require_runs_on, runs_on
    from sgemm.versions import resolve

    if not names:
        return [v for v in LADDER.values() if v.peak_share and runs_on(v, arch)]
    versions = [resolve(name) for name in names]
    for version in versions:
        require_runs_on(version, arch)
    return versions


def _candidates(
    versions: Sequence[Any], arch: str, as_they_are: Iterable[Any] = ()
) -> list[Candidate]:
    """What is tried of each version, the ladder's own tiles first; and the versions that are tried
    with no others."""
    reshaped = {other: version for version in versions for other in with_other_tiles(version)}
    reshaped |= {version: version for version in as_they_are}
    with ThreadPoolExecutor(os.cpu_count()) as compilers:  # NVRTC works in as many threads
        examined = compilers.map(lambda other: examine(reshaped[other], other, arch), reshaped)
        return without_repetitions(progress(examined, "compiling", total=len(reshaped)))


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
    depth = version.tile[2]
    depths = [int(depth * share) for share in DEPTHS if depth * share >= LEAST_DEPTH] or [depth]
    stages = [version.stages, *(STAGES if version.stages > 2 else ())]
    found = {version: None}  # in order, each once
    for (tile, micro_tile, slices), tile_k, buffers in product(_shapes(version), depths, stages):
        one = version.reshaped((*tile, tile_k), micro_tile, version.blocks_per_sm, buffers, slices)
        if version.min_compute_capability >= DEALS_OUT_REGISTERS:
            found[one] = None
            continue
        most = version.blocks_per_sm
        if micro_tile != (1, 1) and one.threads:
            sums = micro_tile[0] * micro_tile[1]
            most = REGISTERS // (one.threads * (sums + sums // 2 + 32))
        for blocks_per_sm in (most, most * 3 // 4):  # the fewer, the more registers for each thread
            found[replace(one, blocks_per_sm=max(1, blocks_per_sm))] = None
    return list(found)


def _shapes(version: Any) -> list[tuple[tuple[int, int], tuple[int, int], int]]:
    """The tiles of a block, each with that of a thread, and with slices, to be tried."""
    own = version.tile[:2]
    if version.threads == version.multipliers:
        in_registers = version.micro_tile != (1, 1)
        tiles = TILES if in_registers else TILES_WITHOUT_MICRO_TILE
        micro_tiles = [version.micro_tile, *(MICRO_TILES if in_registers else ())]
        return list(product(dict.fromkeys([own, *tiles]), dict.fromkeys(micro_tiles), [1]))
    found = {own: (version.micro_tile, version.slices)}  # a tile has one: that of the fewest loads
    slices = SLICES if version.slices > 1 else (1,)
    for micro_tile, among, tile in product(MICRO_TILES_OF_THREADS, slices, TILES_OF_THREADS):
        one = version.reshaped((*tile, version.tile[2]), micro_tile, 1, version.stages, among)
        if one.threads == version.threads and _is_filled(one):
            found.setdefault(tile, (micro_tile, among))
    return [(tile, *its) for tile, its in found.items()]


def _is_filled(version: Any) -> bool:
    """Whether whole warps fill the tile, and groups of four rows a slice: the compiler would tell,
    and take its time."""
    slices = version.slices
    lanes_m = 2 if slices == 4 else 4  # kernels/micro_tile.cuh has the rules
    lanes_n = 32 // slices // lanes_m
    tile_m, tile_n, _ = version.tile
    micro_m, micro_n = version.micro_tile
    rests = tile_m % (lanes_m * micro_m), tile_n % (lanes_n * micro_n), micro_m % (4 * slices)
    return not any(rests)


def examine(version: Any, other: Any, arch: str) -> Candidate:
    """Compile a version with other tiles, and tell whether it is worth timing."""
    from sgemm import MissingError, SgemmError, compile
    from sgemm.inspection import inspect

    if version.threads != version.multipliers and other.threads != version.threads:
        return Candidate(other, pruned=f"{other.threads} threads; it is for {version.threads}")
    try:
        spill_bytes = compile(other, arch).spill_bytes
        if spill_bytes:
            return Candidate(other, pruned=f"spills {spill_bytes} bytes per thread")
        found = inspect(other, arch)
        pruned = _why_not(other, found)
        if not pruned:
            compile(other, arch, vector=False)  # which operands that allow no float4 need
    except MissingError:  # nothing can be told of any
        raise
    except SgemmError as error:
        rules = dict.fromkeys(_ASSERTION.findall(str(error)))
        return Candidate(other, pruned="; ".join(rules) or _last_line(error))
    return Candidate(other, found, pruned)


def _why_not(version: Any, found: Any) -> str | None:
    """What an SM's limits say against a version, or that nothing can be predicted of it."""
    if not found.loop.ffma:
        return "its machine code has no loop with FFMA"
    if found.occupancy is None:
        return f"what an SM of {found.arch} holds is not known"
    if found.occupancy.blocks < version.blocks_per_sm:
        return f"an SM holds {found.occupancy.blocks} of its blocks ({found.occupancy.limiter})"
    return None


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()


def _rows(
    tried: Sequence[Candidate], problem: Problem, target: Any, by_rule: Any = None
) -> dict[Any, dict[str, Any]]:
    """Version to row, of each candidate at a problem, in the same order, with nothing timed yet;
    ``by_rule`` is the one that is not pruned for what is predicted of it."""
    from sgemm.ceiling import ceiling

    shape = problem.m, problem.n, problem.k
    limits = {
        one.version: ceiling(one.version, one.found, target, *shape)
        for one in tried
        if not one.pruned
    }
    predicted = {
        version: predicted_seconds(version, limit, problem, target)
        for version, limit in limits.items()
    }
    least = min(predicted.values(), default=inf)
    rows = {}
    for one in tried:
        version, found, pruned = one.version, one.found, one.pruned
        limit, seconds = limits.get(version), predicted.get(version)
        if seconds and seconds > FAR * least and version != by_rule:
            pruned = f"predicted to take {seconds / least:.2f} times as long as the best"
        rows[version] = {
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
            "occupancy": found and found.occupancy and found.occupancy.share,
            "ceiling": limit and limit.share,
            "limit": limit and limit.limit,
            "predicted_gflops": seconds and problem.flops / seconds / 1e9,
            "pruned": pruned,
            "by_rule": version == by_rule,
            "gflops": None,
            "seconds": [],
            "wrong": None,
        }
    return rows


def predicted_seconds(version: Any, limit: Any, problem: Problem, target: Any) -> float:
    """About how long a version takes, of which ``limit`` is the ceiling at the problem: its plan at
    the pace that an SM can hold while it computes, or the way through memory if that takes longer.
    """
    in_an_sm = [share for name, share in limit.limits.items() if name != "memory"]
    pace = min(in_an_sm) / limit.limits["tiles"] * target.peak_gflops * 1e9 / target.sms
    plan = version.plan(problem.m, problem.n, problem.k, target.sms)
    tile_m, tile_n, _ = version.tile
    blocks = min(version.blocks_per_sm, -(-plan.blocks // target.sms))  # of an SM at a time
    computing = 2 * plan.steps * tile_m * tile_n * blocks / pace
    moving = problem.operand_bytes / (target.gigabytes_per_second * 1e9)
    return float(START_SECONDS + max(computing, moving))


class Contest:
    """The candidates that are timed at a ``problem``: of the versions whose names are ``tried``,
    and beside them ``by_rule``, with which they need not keep up. ``seconds`` are those of each
    one's short sample, unless its first result is wrong, ``wrong`` says what is wrong with which.
    Of the samplers only those of the fastest stay, and that of ``by_rule``: each has a result in
    memory.
    """

    def __init__(
        self,
        problem: Problem,
        tried: Iterable[str],
        by_rule: Any,
        stream: CudaStream,
        monitor: gpu.Monitor,
        values: Any,
    ) -> None:
        self.seconds: dict[Any, float] = {}
        self.wrong: dict[Any, str] = {}
        self.problem = problem
        self._tried = set(tried)
        self._by_rule = by_rule
        self._stream = stream
        self._monitor = monitor
        self._values = values
        self._operands: dict[Layout, Operands] = {}
        self._samplers: dict[Any, Sampler] = {}

    def sample(self, version: Any) -> None:
        """Take a short sample of a version."""
        layout = version.b_layout
        if layout not in self._operands:
            self._operands[layout] = Operands(self.problem, layout, self._values)
        workload = Product(by_version(version), self._operands[layout])
        sampler = Sampler(workload, self._stream, self._monitor)
        sampler.settled = True  # a warm-up would take ten times as long as the sample
        if self._is_right(version, sampler.prepare):
            self.seconds[version] = sampler.sample().seconds
            self._samplers[version] = sampler
        for slower in self._samplers.keys() - self.finalists():
            self._is_right(slower, self._samplers.pop(slower).finish)

    def fastest(self, within: float) -> list[Any]:
        """The fastest so far, and those that are slower by that factor at most, in that order."""
        seconds = {one: taken for one, taken in self.seconds.items() if one.name in self._tried}
        most = within * min(seconds.values(), default=inf)
        return sorted(
            (one for one in seconds if seconds[one] <= most), key=lambda one: seconds[one]
        )

    def finalists(self) -> list[Any]:
        """Those that are to be timed to the end."""
        rivals = [version for version in self.fastest(CLOSE) if version != self._by_rule]
        own = [self._by_rule] if self._by_rule in self.seconds else []
        return own + rivals[: FINALISTS - len(own)]

    def decide(self) -> dict[Any, list[float]]:
        """Let the finalists take turns, if there are several; the seconds of their samples."""
        finalists = self.finalists()
        if len(finalists) > 1:
            for version in finalists:
                self._samplers[version].settled = False  # now there is time to warm up
            finalists = [v for v in finalists if self._is_right(v, self._samplers[v].prepare)]
            for turn in range(BLOCKS):
                sample_blocks([self._samplers[version] for version in finalists], turn)
        return {
            version: [sample.seconds for sample in self._samplers[version].samples]
            for version in finalists
            if self._is_right(version, self._samplers[version].finish)
        }

    def _is_right(self, version: Any, step: Callable[[], None]) -> bool:
        """Whether a step does not find that the version's result is wrong, or that its kernel does
        not start."""
        from sgemm import KernelError
        from sgemm.errors import GpuUnusableError

        try:
            step()
        except GpuUnusableError:
            raise
        except (WrongResultError, KernelError) as error:
            self.wrong[version] = str(error)
            return False
        return True


def _hold(contest: Contest, rows: Mapping[Any, dict[str, Any]], until: float) -> None:
    """Time the candidates that are not pruned, and enter into the rows what came out.

    First each tile has its turn, with the depth and the buffers that are the nearest to the
    ladder's and the best predictions first; then, in half of the time at least, the fastest tiles
    with the others.
    """
    tiles: dict[Any, list[Any]] = {}
    for version, row in rows.items():
        if not row["pruned"]:
            tiles.setdefault(_tile(version), []).append(version)
    first = [of_tile[0] for of_tile in tiles.values()]
    first.sort(
        key=lambda version: (rows[version]["by_rule"], rows[version]["predicted_gflops"]),
        reverse=True,
    )
    # What the finalists take in the end, and a fifth more beside the device's time:
    until -= 1.2 * FINALISTS * (timing.WARM_UP_CAP_SECONDS + BLOCKS * timing.BLOCK_SECONDS)

    def sample(versions: Iterable[Any], until: float) -> None:
        for version in versions:
            if len(contest.seconds) > 1 and monotonic() > until:
                rows[version]["pruned"] = "no time was left for it"
            else:
                contest.sample(version)

    sample(first, (monotonic() + until) / 2)
    sample((other for one in contest.fastest(NEAR) for other in tiles[_tile(one)][1:]), until)

    decided = contest.decide()
    for version in (version for of_tile in tiles.values() for version in of_tile):
        row = rows[version]
        if version in contest.wrong:
            row["wrong"] = contest.wrong[version]
        elif version in decided:
            row["seconds"] = decided[version]
        elif version in contest.seconds:
            row["seconds"] = [contest.seconds[version]]
            row["pruned"] = "slower in a short sample"
        elif not row["pruned"]:
            row["pruned"] = "its tile is slower, with other buffers"
        if row["seconds"]:
            row["gflops"] = contest.problem.flops / median(row["seconds"]) / 1e9


def _tile(version: Any) -> Any:
    """What candidates have in common that differ in depth, buffers and blocks per SM only."""
    return version.name, version.tile[:2], version.micro_tile, version.slices


def _choices(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the rows of a problem that which ``matmul`` should take there, if any is right: the
    fastest, or where that is not worth a change, what it takes by its rule. That is a choice too:
    without it a near shape's would count. After it the fastest of each other version, for a
    ``matmul`` that may not take the first."""
    timed = [row for row in rows if row["gflops"]]
    to_the_end = [row for row in timed if not row["pruned"]]
    if not to_the_end:
        return []
    best = max(to_the_end, key=lambda row: row["gflops"])
    by_rule = next((row for row in to_the_end if row["by_rule"]), best)
    first = best if best["gflops"] > WORTH * by_rule["gflops"] else by_rule
    found = {first["version"]: first}
    for row in sorted(timed, key=lambda row: row["gflops"], reverse=True):
        found.setdefault(row["version"], row)
    return list(found.values())


def _print(
    options: argparse.Namespace, surroundings: dict[str, Any], rows: Sequence[dict[str, Any]]
) -> None:
    """Best first: by what was measured to the end, then by what was measured at all, and by what
    is predicted. For people the others are counted, by the reason for which they are out."""
    rows = sorted(
        rows,
        key=lambda row: (not row["pruned"], row["gflops"] or 0, row["predicted_gflops"] or 0),
        reverse=True,
    )
    if options.json:
        print_document(document("tune", surroundings, rows))
        return
    for problem in dict.fromkeys(row["problem"] for row in rows):
        of_problem = [row for row in rows if row["problem"] == problem]
        out = [row for row in of_problem if row["pruned"] and not row["gflops"]]
        left = [row for row in of_problem if row not in out]
        print_table(_table(f"{problem} on {surroundings['gpu']}", left))
        if out:
            print(f"{len(out)} of {len(of_problem)} candidates are not shown; --json has them:")
            for reason, count in counted(row["pruned"] for row in out).items():
                print(f"{count:6}  {reason}")
    if not surroundings["timed"]:
        print("Nothing was timed: the order is that of the predictions (docs/tuning.md).")


def counted(reasons: Iterable[str]) -> dict[str, int]:
    """How often each reason is given, the most frequent first. Those that differ in their figures
    count as one, with … in place of these."""
    alike: dict[str, list[str]] = {}
    for reason in reasons:
        alike.setdefault(_FIGURE.sub("…", reason), []).append(reason)
    return {
        same[0] if len(set(same)) == 1 else general: len(same)
        for general, same in sorted(alike.items(), key=lambda item: -len(item[1]))
    }


def _table(title: str, rows: Sequence[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    headings = ("version", "tile", "per thread", "blocks/SM", "stages", "slices", "threads")
    for heading in (*headings, "registers", "occupancy", "ceiling", "predicted", "GFLOPS"):
        table.add_column(heading, justify="left" if heading == "version" else "right")
    table.add_column("limited by; or why it is not timed to the end")
    for row in rows:
        table.add_row(
            row["version"],
            "×".join(map(str, row["tile"])),
            "×".join(map(str, row["micro_tile"])),
            *(str(row[key]) for key in ("blocks_per_sm", "stages", "slices", "threads")),
            "–" if row["registers"] is None else str(row["registers"]),
            _percent(row["occupancy"]),
            _percent(row["ceiling"]),
            *(f"{row[key]:,.0f}" if row[key] else "–" for key in ("predicted_gflops", "gflops")),
            row["wrong"] or row["pruned"] or row["limit"],
        )
    return table


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
