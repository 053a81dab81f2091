"""``python -m benchmarks counters``: the simulator's counts beside the GPU's own.

Nsight Compute reads the counters of one product of each version, and the simulator counts the same
product, dealt out to as many SMs. Where they differ the table says why, if it can be told.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from . import child, profile
from .checkout import LADDER
from .document import document, print_document
from .problems import Problem, parse
from .tables import print_table

PROBLEMS = ("256x256x256", "200x300x520")
"""One of whole tiles and one that no tile divides."""

_WAVEFRONTS = "l1tex_data_pipe_lsu_wavefronts_mem_shared_op"
COUNTERS = {
    "multiply_adds": ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",),
    "global_load_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",),
    "global_load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
    "global_store_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",),
    "global_store_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",),
    "shared_load_requests": ("smsp__inst_executed_op_shared_ld.sum",),
    "shared_load_wavefronts": (
        f"smsp__sass_{_WAVEFRONTS}_ld.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    ),
    "shared_store_requests": ("smsp__inst_executed_op_shared_st.sum",),
    "shared_store_wavefronts": (
        f"smsp__sass_{_WAVEFRONTS}_st.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    ),
    "copy_requests": ("smsp__inst_executed_op_ldgsts.sum",),
    "copy_wavefronts": (
        f"smsp__sass_{_WAVEFRONTS}_ldgsts.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",
    ),
}
"""Count to the metrics that tell it, the best first. Global loads include what cp.async loads: an
H200 counts it among them. What cp.async stores is counted apart, as copies. The wavefronts of
``smsp__sass_`` are those of the accesses' addresses; ``l1tex__`` adds the cycles in which data that
returns from memory holds an access up."""

ALSO = (
    "smsp__inst_executed_op_global_ld.sum",
    "smsp__inst_executed_op_global_st.sum",
    *(
        f"sm__sass_l1tex_t_{unit}_pipe_lsu_mem_global_op_ldgsts_cache_{way}.sum"
        for unit in ("requests", "sectors")
        for way in ("access", "bypass")
    ),
    *(f"sm__sass_{_WAVEFRONTS}_ldgsts_cache_{way}.sum" for way in ("access", "bypass")),
)
"""Metrics that the document has as well: they part the copies that the L1 cache keeps from those
that pass it by."""

EXACT = ("multiply_adds", "global_load", "global_store", "copy_requests")
TOLERANCE = 0.1
"""How far the others may be apart: NVRTC puts three loads that no lane executes before each step's
copies, and compilers keep values from shared memory in registers, each as it likes."""

LINE_BYTES = 128  # what the banks of shared memory hold side by side

# The counters of an access, and what machine code calls it.
_KINDS = {
    "global_load": "global load",
    "global_store": "global store",
    "shared_load": "shared load",
    "shared_store": "shared store",
    "copy": "asynchronous copy",
}
EQUAL, NEAR, UNEXPLAINED = "equal", f"within {TOLERANCE:.0%}", "unexplained"
ZEROS = "lanes that copy zeros alone take wavefronts that the simulator does not know"
BUFFERS = "the buffers begin {} bytes into a line of shared memory, in the simulator at its begin"
UP_TO = 1.15
"""So many times the simulator's copies may take as wavefronts for these two reasons."""

Widths = Mapping[str, set[int]]
"""Kind of access to the bits that a lane asks for."""


@dataclass
class Simulated:
    """Counter to what the simulator counts; why a GPU may count more wavefronts of copies."""

    counts: dict[str, float]
    widths: Widths = field(default_factory=dict)
    more_copy_wavefronts: Sequence[str] = ()


def add_parser(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "counters",
        help="the simulator's counts beside Nsight Compute's",
        description="Counts one product of each version in the simulator and on the GPU. Exit "
        "status 1 where they differ for no reason that is known.",
    )
    command.add_argument(
        "--version",
        action="extend",
        nargs="+",
        choices=list(LADDER),
        help="count these only (default: all that the GPU runs)",
    )
    command.add_argument(
        "--problem",
        action="extend",
        nargs="+",
        metavar="MxNxK",
        help=f"such as 200x300x520 (default: {', '.join(PROBLEMS)})",
    )
    command.add_argument("--json", action="store_true", help="print one JSON document")


def run(options: argparse.Namespace) -> int:
    """Count and print; raises NoGpuError or ProfilerError where nothing can be told."""
    from sgemm.ladder import names_for

    problems = [parse(text) for text in options.problem or PROBLEMS]
    device, ncu = profile.find()
    runnable = names_for(device.compute_capability)
    names = [name for name in options.version or LADDER if name in runnable]
    products = [(name, problem) for problem in problems for name in names]
    with ThreadPoolExecutor() as pool:
        counting = pool.submit(of_gpu, ncu, products)
        simulated = list(pool.map(lambda product: of_simulator(*product), products))
        counted = counting.result()
    rows = [
        row
        for product, mine, theirs in zip(products, simulated, counted, strict=True)
        for row in compare(*product, mine, theirs, machine_code(*product, device.arch))
    ]
    surroundings = profile.describe(device, ncu)
    if options.json:
        print_document(document("counters", surroundings, rows))
    else:
        _print_table(rows, surroundings)
    return int(any(row["verdict"] == UNEXPLAINED for row in rows))


def known_metrics(ncu: str) -> set[str]:
    """The metrics that Nsight Compute has for this GPU; empty where it does not tell. Some releases
    refuse all where one is unknown."""
    listed = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True).stdout
    names = (line.split()[0].partition(".")[0] for line in listed.splitlines() if line.strip())
    return {name for name in names if "__" in name}


def of_gpu(ncu: str, products: Sequence[tuple[str, Problem]]) -> list[dict[str, float | None]]:
    """What the GPU has counted of each product, by metric. One process computes all of them; where
    it fails, the products from there on have nothing."""
    known = known_metrics(ncu)
    metrics = [
        metric
        for metric in (*(name for names in COUNTERS.values() for name in names), *ALSO)
        if not known or metric.partition(".")[0] in known
    ]
    keys = [f"{name} {problem.name}" for name, problem in products]
    program = child.command(sys.executable, "counters", [], keys)
    figures = profile.run_profiler(ncu, metrics, program, only="sgemm")
    return figures + [{}] * (len(products) - len(figures))


def answer(
    args: Sequence[str], keys: Sequence[str], emit: Callable[[str, child.Record], None]
) -> None:
    """What the profiled process does: the products, one after the other."""
    for key in keys:
        name, problem = key.split(maxsplit=1)
        profile.profiled_product(name, parse(problem))
        emit(key, {})


def of_simulator(name: str, problem: Problem) -> Simulated:
    """What the simulator counts of a product, with loops unrolled as in machine code."""
    import cupy

    import sgemm
    from sgemm.simulator.counts import total
    from sgemm.trace import trace

    sms = cupy.cuda.Device().attributes["MultiProcessorCount"]
    version = sgemm.LADDER[name]
    traced = trace(version, problem.m, problem.n, problem.k, sms, unrolled=True)
    lines = traced.lines.values()
    everything = total(lines)
    copies = total(line for line in lines if line.copies)
    others = total(line for line in lines if not line.copies)
    accesses = {
        "global_load": everything.global_loads,
        "global_store": everything.global_stores,
        "shared_load": everything.shared_loads,
        "shared_store": others.shared_stores,
        "copy": copies.shared_stores,
    }
    counts: dict[str, float] = {"multiply_adds": everything.fmas}
    for kind, access in accesses.items():
        counts[f"{kind}_requests"] = access.requests
        counts[f"{kind}_{_unit(kind)}"] = access.units
    reasons = []
    if copies.shared_stores.floats > copies.global_loads.floats:
        reasons.append(ZEROS)
    if version.dynamic_shared_bytes and version.shared_bytes % LINE_BYTES:
        reasons.append(BUFFERS.format(version.shared_bytes % LINE_BYTES))
    return Simulated(
        counts,
        {
            "global_load": _widths(line.global_loads for line in lines if not line.copies),
            "global_store": _widths(line.global_stores for line in lines),
            "shared_load": _widths(line.shared_loads for line in lines),
            "shared_store": _widths(line.shared_stores for line in lines if not line.copies),
            "copy": _widths(line.shared_stores for line in lines if line.copies),
        },
        reasons,
    )


def _unit(kind: str) -> str:
    return "sectors" if kind.startswith("global") else "wavefronts"


def _widths(accesses: Iterable[Any]) -> set[int]:
    """Bits that a lane asks for at a line of the source, rounded up where lanes did not all."""
    floats = (ceil(a.floats / a.requests / 32) for a in accesses if a.requests)
    return {32 if width == 1 else 64 if width == 2 else 128 for width in floats}


def machine_code(name: str, problem: Problem, arch: str) -> Widths:
    """Of the kernel that computes a product: of its loops, and of the kinds of access that these
    do not have, of all of it. Empty where nothing here can read machine code."""
    import sgemm
    from sgemm import sass
    from sgemm.matrix import form_of
    from sgemm.recipe import recipe_for

    disassembler = sass.find_disassembler()
    if disassembler is None:
        return {}
    version, m, n, k = sgemm.LADDER[name], problem.m, problem.n, problem.k
    b = form_of(k, n, n, 1, 0) if version.b_layout == "row" else form_of(k, n, 1, k, 0)
    kernel = recipe_for(version, form_of(m, k, k, 1, 0), b, form_of(m, n, n, 1, 0), 1).kernel
    compiled = sgemm.compile(version, arch, vector=bool(kernel.defines["VECTOR"]))
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "cubin")
        cubin.write_bytes(compiled.cubin)
        try:
            instructions = sass.parse(sass.disassemble(disassembler, cubin))
        except (ValueError, subprocess.CalledProcessError):  # of a release older than NVRTC
            return {}
    loops = sass.main_loop(instructions) + sass.producer_loop(instructions)

    def widths(code: Sequence[sass.Instruction], kind: str) -> set[int]:
        return {instruction.bits for instruction in code if instruction.kind == kind}

    return {
        kind: widths(loops, named) or widths(instructions, named) for kind, named in _KINDS.items()
    }


def compare(
    name: str,
    problem: Problem,
    simulated: Simulated,
    counted: Mapping[str, float | None],
    machine: Widths,
) -> list[dict[str, Any]]:
    """A row for each counter; ``ratio`` is the GPU's count over the simulator's. Metrics that stand
    for no count of the simulator's follow."""
    theirs = {counter: _best(metrics, counted) for counter, metrics in COUNTERS.items()}
    rows = []
    for counter, (metric, gpu) in theirs.items():
        mine = simulated.counts[counter]
        rows.append(
            {
                "version": name,
                "problem": problem.name,
                "counter": counter,
                "metric": metric,
                "simulator": mine,
                "gpu": gpu,
                "ratio": None if gpu is None or not mine else gpu / mine,
                "verdict": _verdict(counter, simulated, theirs, machine),
            }
        )
    return rows + [
        {
            "version": name,
            "problem": problem.name,
            "counter": "",
            "metric": metric,
            "simulator": None,
            "gpu": counted.get(metric),
            "ratio": None,
            "verdict": "",
        }
        for metric in ALSO
    ]


def _best(metrics: Sequence[str], counted: Mapping[str, float | None]) -> tuple[str, float | None]:
    """The first metric that has a figure, and the figure."""
    return next(
        ((metric, counted[metric]) for metric in metrics if counted.get(metric) is not None),
        (metrics[0], None),
    )


def _verdict(
    counter: str,
    simulated: Simulated,
    theirs: Mapping[str, tuple[str, float | None]],
    machine: Widths,
) -> str:
    """How the GPU's count compares with the simulator's: ``EQUAL``, ``NEAR``, why it is another
    one, or ``UNEXPLAINED``."""
    mine, (metric, gpu) = simulated.counts[counter], theirs[counter]
    if gpu is None:
        return f"the GPU has no {metric}"
    if gpu == mine:
        return EQUAL
    if not counter.startswith(EXACT) and abs(gpu - mine) <= TOLERANCE * mine:
        return NEAR
    kind = counter.rpartition("_")[0]
    source, code = simulated.widths.get(kind, set()), machine.get(kind, set())
    if source and code and source != code:
        return f"accesses of {_bits(source)} in the source are of {_bits(code)} in machine code"
    if counter == "copy_wavefronts" and mine < gpu <= UP_TO * mine:
        return "; ".join(simulated.more_copy_wavefronts) or UNEXPLAINED
    return UNEXPLAINED


def _bits(widths: Iterable[int]) -> str:
    return " and ".join(map(str, sorted(widths))) + " bits"


def _print_table(rows: Sequence[Mapping[str, Any]], surroundings: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table(
        title="Counts on {gpu}, beside the simulator's".format(**surroundings),
        caption="Nsight Compute {nsight_compute}, driver {driver}".format(**surroundings),
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("version", "problem", "counter"):
        table.add_column(heading)
    for heading in ("simulator", "GPU", "GPU / simulator"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for row in rows:
        if row["simulator"] is None:
            continue
        table.add_row(
            row["version"],
            row["problem"],
            row["counter"].replace("_", " "),
            f"{row['simulator']:,.0f}",
            "–" if row["gpu"] is None else f"{row['gpu']:,.0f}",
            "–" if row["ratio"] is None else f"{row['ratio']:.3f}",
            row["verdict"],
        )
    print_table(table)
