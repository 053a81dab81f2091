"""``python -m benchmarks profile``: what the warps of every version wait for.

Nsight Compute runs one product of each version in a process of its own (see ``child``) and reads
the GPU's counters. From its figures follow the share of the warps' time that each stall reason
takes, how busy the pipes are, and the bottleneck.
"""

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from . import child, environment, gpu
from .checkout import LADDER
from .document import document, print_document
from .measure import CUBLAS, SUBJECTS, by_version
from .problems import PROBLEMS, Problem
from .tables import print_table

PROBLEM = PROBLEMS["4096x4096x4096"]
TIMEOUT_SECONDS = 300.0

DURATION = "gpu__time_duration.sum"
PIPES = {
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "fma": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "lsu": "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active",
    "shared_memory": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed",
    "l1": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
"""What is busy for which share of the time: schedulers that issue, execution pipes, memories."""

RATES = {
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "l1_hit_rate": "l1tex__t_sector_hit_rate.pct",
    "l2_hit_rate": "lts__t_sector_hit_rate.pct",
}
# The conflicts are the GPU's own: those with what returns from memory are among them.
COUNTS = {
    "shared_memory_bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
}

STALLS = {
    reason: f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
    for reason in (
        "barrier",
        "branch_resolving",
        "dispatch_stall",
        "drain",
        "imc_miss",
        "lg_throttle",
        "long_scoreboard",
        "math_pipe_throttle",
        "membar",
        "mio_throttle",
        "misc",
        "no_instruction",
        "not_selected",
        "selected",
        "short_scoreboard",
        "sleeping",
        "tex_throttle",
        "wait",
    )
}
"""How many warps, on average, are in that state when a scheduler issues. Named one by one, as some
GPUs have parts of these under longer names, which must not count twice."""

METRICS = tuple(metric for group in (STALLS, PIPES, RATES, COUNTS) for metric in group.values())

_READY = ("selected", "not_selected")  # the warp could issue: it waits for nothing
_SECONDS = {
    prefix + unit: seconds
    for prefix, seconds in (("", 1.0), ("m", 1e-3), ("u", 1e-6), ("n", 1e-9))
    for unit in ("s", "second")
}
CAUSES = {
    "long_scoreboard": "global memory",
    "lg_throttle": "the queue to global memory",
    "short_scoreboard": "shared memory",
    "mio_throttle": "the queue to shared memory",
    "barrier": "the block's other warps, at a barrier",
    "math_pipe_throttle": "a busy arithmetic pipe",
    "dispatch_stall": "the dispatcher, held up by registers or pipes",
    "wait": "the fixed latency of the instruction before",
    "no_instruction": "instructions",
    "drain": "stores to memory, at the end",
}
OUTSTANDING = 0.25
"""A stall reason is the bottleneck if it takes this share of the warps' time, and half as much
again as the next one. Where none does, the stalls are even."""


class ProfilerError(RuntimeError):
    """Nsight Compute is missing, or may not or could not read the counters."""


def add_parser(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "profile",
        help="stall reasons and pipe use of every version, with Nsight Compute",
        description=f"Profiles one product of each version at {PROBLEM.name} with Nsight Compute.",
    )
    command.add_argument(
        "--version",
        action="extend",
        nargs="+",
        choices=SUBJECTS,
        help="profile these only (default: the ladder and cuBLAS)",
    )
    command.add_argument("--json", action="store_true", help="print one JSON document")


def run(options: argparse.Namespace) -> int:
    """Profile and print; raises NoGpuError or ProfilerError where nothing can be told."""
    device, ncu = find()
    surroundings = {**describe(device, ncu), "problem": PROBLEM.name}
    rows = [row(subject, measure(ncu, subject)) for subject in options.version or SUBJECTS]
    if options.json:
        print_document(document("profile", surroundings, rows))
    else:
        _print_table(rows, surroundings)
    return 0


def find() -> tuple[gpu.Gpu, str]:
    """The GPU, which nobody else uses, and the path of Nsight Compute; raises NoGpuError, or
    ProfilerError."""
    device = gpu.find()
    if device is None:
        raise gpu.NoGpuError("there is no GPU, and only a GPU can be profiled")
    ncu = shutil.which("ncu")
    if ncu is None:
        raise ProfilerError("Nsight Compute is not installed: there is no ncu on the PATH")
    gpu.Monitor(device).require_alone(own_processes=0)
    return device, ncu


def describe(device: gpu.Gpu, ncu: str) -> dict[str, Any]:
    """What the figures were measured with."""
    return {
        "checkout": environment.commit_of_checkout(),
        "gpu": device.name,
        "compute_capability": "{}.{}".format(*device.compute_capability),
        "cuda": device.cuda,
        **gpu.Monitor(device).describe(),
        "nsight_compute": _version(ncu),
        "clocks": "as they were: not locked",
    }


def answer(
    args: Sequence[str], keys: Sequence[str], emit: Callable[[str, child.Record], None]
) -> None:
    """What the profiled process does: one product of the subject ``args[0]``."""
    (subject,) = args
    (key,) = keys
    profiled_product(subject, PROBLEM)
    emit(key, {})


def profiled_product(subject: str, problem: Problem) -> None:
    """A subject's product, the second of two, within the range that the profiler looks at."""
    import cupy
    from cupy.cuda import runtime

    from .products import Operands, random_values
    from .timing import CudaStream

    with CudaStream() as stream:
        operands = Operands(problem, _native_b(subject), random_values(Operands.floats(problem)))
        out = cupy.empty((problem.m, problem.n), cupy.float32)
        multiply = _multiply(subject, stream.stream)
        multiply(operands.a[0], operands.b[0], out)  # compiles and loads
        runtime.deviceSynchronize()
        runtime.profilerStart()
        multiply(operands.a[0], operands.b[0], out)
        runtime.deviceSynchronize()
        runtime.profilerStop()


def _native_b(subject: str) -> Any:
    return "row" if subject == CUBLAS else LADDER[subject].b_layout


def _multiply(subject: str, stream: Any) -> Callable[[Any, Any, Any], Any]:
    if subject == CUBLAS:
        from .cublas import Cublas

        return Cublas(stream).multiply
    return by_version(subject)


def measure(ncu: str, subject: str) -> dict[str, Any]:
    """The figures of the kernel of one subject, by Nsight Compute's names."""
    program = child.command(sys.executable, "profile", [subject], ["done"])
    try:
        return longest_kernel(run_profiler(ncu, METRICS, program))
    except ProfilerError as error:
        raise ProfilerError(f"{subject}: {error}") from None


def run_profiler(
    ncu: str,
    metrics: Sequence[str],
    program: Sequence[str],
    *,
    only: str | None = None,
    variables: Mapping[str, str] = os.environ,
    timeout: float = TIMEOUT_SECONDS,
) -> list[dict[str, Any]]:
    """The figures of each kernel that the program has launched in the profiler's range, or of those
    called ``only``, by Nsight Compute's names; ProfilerError where there are none."""
    options = [f"--kernel-name={only}"] if only else []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.csv")
        try:
            finished = subprocess.run(
                [*profiler(ncu, log, metrics), *options, *program],
                capture_output=True,
                text=True,
                timeout=timeout,
                env={**variables, "LC_ALL": "C"},  # 1,234.5 whatever the language
            )
        except subprocess.TimeoutExpired:
            raise ProfilerError(f"no answer within {timeout:.0f} s") from None
        output = log.read_text() if log.exists() else ""
    try:
        return kernels(output)
    except ProfilerError as error:
        said = finished.stderr.strip().splitlines()[-1:]
        raise ProfilerError("; ".join([str(error), *said])) from None


def profiler(ncu: str, log: Path, metrics: Sequence[str]) -> list[str]:
    """The command line of Nsight Compute, to be followed by the program's."""
    return [
        ncu,
        "--clock-control=none",  # the clocks that every other figure is measured at
        "--profile-from-start=off",
        "--target-processes=all",
        f"--metrics={','.join([DURATION, *metrics])}",
        "--csv",
        "--page=raw",
        "--print-units=base",
        f"--log-file={log}",
    ]


def kernels(output: str) -> list[dict[str, Any]]:
    """The figures of each kernel from what ``ncu --csv --page raw`` printed: a line of names, one
    of units, and one per kernel, among its messages. Durations are in seconds. Raises ProfilerError
    if there is no kernel."""
    if "ERR_NVGPUCTRPERM" in output:
        from sgemm.causes import COUNTERS_DENIED  # not above: older commits lack it

        raise ProfilerError(
            f"not permitted: {COUNTERS_DENIED.why}; repair: {COUNTERS_DENIED.repair}"
        )
    lines = output.splitlines()
    table = [row for row in csv.reader(line for line in lines if line.startswith('"')) if row]
    if len(table) < 3:
        errors = [line for line in lines if line.startswith("==ERROR==")]
        why = errors[0].removeprefix("==ERROR==").strip() if errors else "no kernel was profiled"
        raise ProfilerError(f"Nsight Compute gave no figures: {why}")
    names, units, *rows = table
    found: list[dict[str, Any]] = [
        {
            name: _number(cell) if "__" in name else cell
            for name, cell in zip(names, row, strict=True)
        }
        for row in rows
    ]
    unit = _SECONDS.get(units[names.index(DURATION)])
    for kernel in found:
        if unit is None or kernel[DURATION] is None:
            raise ProfilerError("Nsight Compute gave no duration")
        kernel[DURATION] *= unit
    return found


def longest_kernel(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of the kernel that took longest: the product, among copies of operands."""
    return max(found, key=lambda kernel: float(kernel[DURATION]))


def _number(cell: str) -> float | None:
    """A figure; None where Nsight Compute has none, for which it prints nan, n/a or (!) n/a."""
    try:
        number = float(cell.replace(",", ""))
    except ValueError:
        return None
    return None if isnan(number) else number


def row(subject: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """What a page shows of one subject; shares are fractions of 1."""
    shares = stall_shares(figures)
    reason = bottleneck(shares)
    return {
        "version": subject,
        "kernel": figures["Kernel Name"],
        "seconds": figures[DURATION],
        "bottleneck": reason.replace("_", " "),
        "waits_for": CAUSES.get(reason),
        "stalls": shares,
        "pipes": {name: _share(figures, metric) for name, metric in PIPES.items()},
        "rates": {name: _share(figures, metric) for name, metric in RATES.items()},
        "counts": {name: figures.get(metric) for name, metric in COUNTS.items()},
    }


def _share(figures: Mapping[str, Any], metric: str) -> float | None:
    percent = figures.get(metric)
    return None if percent is None else percent / 100


def stall_shares(figures: Mapping[str, Any]) -> dict[str, float]:
    """Reason to its share of the warps' time, the largest first. ``selected`` is the time in which
    a warp issues, ``not_selected`` that in which it could but another one does."""
    ratios = {
        reason: value
        for reason, metric in STALLS.items()
        if (value := figures.get(metric)) is not None
    }
    total = sum(ratios.values())
    if not total:
        raise ProfilerError("Nsight Compute gave no stall reasons")
    return {
        reason: value / total
        for reason, value in sorted(ratios.items(), key=lambda item: item[1], reverse=True)
    }


def bottleneck(shares: Mapping[str, float]) -> str:
    """The stall reason that stands out, or ``"even"``."""
    waits = sorted(
        ((share, reason) for reason, share in shares.items() if reason not in _READY), reverse=True
    )
    (first, reason), (second, _) = waits[:2]
    return reason if first >= OUTSTANDING and first >= 1.5 * second else "even"


def _version(ncu: str) -> str:
    output = subprocess.run([ncu, "--version"], capture_output=True, text=True).stdout
    match = re.search(r"Version (\S+)", output)
    return match[1] if match else "unknown"


def _print_table(rows: Sequence[Mapping[str, Any]], surroundings: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table(
        title="{problem} on {gpu}".format(**surroundings),
        caption="Nsight Compute {nsight_compute}, driver {driver}; clocks not locked".format(
            **surroundings
        ),
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("version")
    table.add_column("bottleneck")
    table.add_column("largest shares of the warps' time")
    for pipe in PIPES:
        table.add_column(pipe.replace("_", " "), justify="right")
    for row in rows:
        largest = list(row["stalls"].items())[:3]
        table.add_row(
            row["version"],
            row["bottleneck"],
            "\n".join(f"{reason.replace('_', ' ')} {share:.0%}" for reason, share in largest),
            *("–" if share is None else f"{share:.0%}" for share in row["pipes"].values()),
        )
    print_table(table)
