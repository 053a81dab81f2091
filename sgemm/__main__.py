"""``python -m sgemm``: versions, check, inspect, trace, explain, doctor.

Exit status: 0 all is right; 1 it ran and the answer is bad; 2 it could not tell, with the reason in
one line on standard error; 130 it was interrupted.
"""

import argparse
import os
import re
import reprlib
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, NoReturn

from . import doctor, report
from .causes import errors_explained
from .choices import measured_on
from .command import UNKNOWN, conclude
from .errors import SgemmError, first_line, in_one_line
from .ladder import LADDER, Version, names_for
from .source import from_file
from .versions import resolve

HELD, BAD = 0, 1
MAX_SEED_DIGITS = 18
TRACED_SHAPE = "256x256x256"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(UNKNOWN, f"{self.prog}: {' '.join(message.splitlines())}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    options = _parser().parse_args(arguments)
    return conclude(lambda: options.run(options), lambda error: _failed(options, error))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m sgemm", description="A ladder of FP32 matrix-multiplication kernels."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    versions = commands.add_parser("versions", help="list the ladder")
    versions.set_defaults(run=_versions)

    check = commands.add_parser(
        "check", help="check that kernels are right, on a GPU or else in the simulator"
    )
    check.set_defaults(run=_check)
    several: dict[str, Any] = {"action": "extend", "nargs": "+", "default": []}
    _add_kernels(check, several)
    check.add_argument("--shape", metavar="MxNxK", help="such as 128x64x30", **several)
    check.add_argument(
        "--seed", type=_seed, default=0, help="of the operands and the simulator's thread order"
    )
    check.add_argument(
        "--sanitize",
        action="store_true",
        help="in the simulator, examine every access to memory, for races and the like",
    )

    inspect = commands.add_parser(
        "inspect", help="what the compiler made of kernels: registers, occupancy, instructions"
    )
    inspect.set_defaults(run=_inspect)
    _add_kernels(inspect, several)
    inspect.add_argument("--arch", metavar="ARCH", help="such as sm_90", **several)
    inspect.add_argument("--loop", action="store_true", help="show the main loop, annotated")

    trace = commands.add_parser(
        "trace", help="what kernels ask of memory, counted in the simulator"
    )
    trace.set_defaults(run=_trace)
    _add_kernels(trace, several)
    trace.add_argument("--shape", metavar="MxNxK", help="such as 128x64x30", **several)

    explain = commands.add_parser(
        "explain", help="which version matmul takes for a shape, and what the others would do"
    )
    explain.set_defaults(run=_explain)
    explain.add_argument("shape", metavar="MxNxK", type=_sizes, help="such as 1024x64x4096")
    explain.add_argument(
        "--sms", metavar="N", type=_positive, help="for a GPU with so many SMs, not the one here"
    )
    explain.add_argument(
        "--cc",
        metavar="X.Y",
        type=_capability,
        help="with --sms: of that compute capability (default: it runs every version)",
    )
    explain.add_argument(
        "--gpu",
        metavar="NAME",
        default="",
        help='with --sms: of that name, such as "NVIDIA H200", for what was measured on it',
    )

    examine = commands.add_parser("doctor", help="examine this machine, and say how to repair it")
    examine.set_defaults(run=_doctor)

    for command in (versions, check, inspect, trace, explain, examine):
        command.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _add_kernels(command: argparse.ArgumentParser, several: dict[str, Any]) -> None:
    """The options by which a command is told its kernels."""
    command.add_argument("--version", metavar="NAME", help="a version of the ladder", **several)
    command.add_argument(
        "--source", metavar="FILE", help="your own kernel, see kernels/template.cu", **several
    )


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > MAX_SEED_DIGITS:
        raise argparse.ArgumentTypeError(
            f"{reprlib.repr(text)} is not an integer of 0 or more, of {MAX_SEED_DIGITS} digits "
            "at most"
        )
    return int(text)


def _sizes(text: str) -> tuple[int, int, int]:
    match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})x([1-9]\d{0,8})", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{reprlib.repr(text)} is not MxNxK in positive numbers, as 1024x64x4096"
        )
    m, n, k = map(int, match.groups())
    return m, n, k


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,5}", text):
        raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is not a positive integer")
    return int(text)


def _capability(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,3})\.(\d)", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{reprlib.repr(text)} is not a compute capability, such as 9.0"
        )
    return int(match[1]), int(match[2])


def _versions(options: argparse.Namespace) -> int:
    versions = LADDER.values()
    if options.json:
        report.print_json("versions", report.base_environment(), [asdict(v) for v in versions])
        return HELD
    report.print_table(
        (
            "",
            "title",
            "B",
            "tile",
            "micro-\ntile",
            "threads",
            "shared\nbytes",
            "cc",
            "article\nGFLOPS",
        ),
        [
            (
                version.name,
                version.title,
                version.b_layout,
                "×".join(map(str, version.tile)),
                "×".join(map(str, version.micro_tile)),
                version.threads,
                version.shared_bytes + version.dynamic_shared_bytes,
                "≥ {}.{}".format(*version.min_compute_capability),
                version.article_gflops,
            )
            for version in versions
        ],
    )
    report.print_notes({version.name: version.change for version in versions})
    return HELD


def _check(options: argparse.Namespace) -> int:
    from .check import CASES, FIGURES, Checker, parse_shape  # NumPy, which doctor does without

    versions = _kernels(options)
    cases = [parse_shape(shape) for shape in options.shape] or CASES
    checker = Checker(options.seed, options.sanitize)
    if checker.where != "gpu" and _gpu_is_required():
        reason = doctor.why_no_gpu(doctor.examine())
        return _cannot_tell(options, f"SGEMM_REQUIRE_GPU=1, and there is no usable GPU: {reason}")

    rows = []
    jobs = [(version, case) for version in versions for case in cases]
    with report.progress() as progress, ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = pool.map(checker.compile, versions)
        list(progress.track(compiled, len(versions), description="compiling"))
        for version, case in progress.track(jobs, description="checking"):
            rows.append(checker.check(version, case))
            if not checker.usable:
                break

    if options.json:
        report.print_json("check", doctor.environment(), [asdict(row) for row in rows])
    else:
        report.print_table(
            ("", "M×N×K", "case", "where", "error\n/bound", "error\n/max", "integers", "verdict"),
            [
                (
                    row.version,
                    f"{row.m}×{row.n}×{row.k}",
                    row.case,
                    row.where,
                    row.error_over_bound,
                    row.relative_error,
                    "exact" if row.exact else "inexact",
                    row.verdict,
                )
                for row in rows
            ],
        )
        report.print_notes(
            {f"{row.version} {row.m}×{row.n}×{row.k}": row.detail for row in rows if row.detail}
        )
        report.print_notes(FIGURES)
    return BAD if any(row.verdict == "wrong" for row in rows) else HELD


def _inspect(options: argparse.Namespace) -> int:
    from . import compiler, inspection, inspection_report
    from .occupancy import GENERATIONS

    versions = _kernels(options)
    architectures = options.arch or GENERATIONS
    jobs = [
        (version, arch)
        for version in versions
        for arch in architectures
        if options.arch or compiler.runs_on(version, arch)
    ]
    with report.progress() as progress, ThreadPoolExecutor(os.cpu_count()) as pool:
        inspected = pool.map(lambda job: inspection.inspect(*job), jobs)
        found = list(progress.track(inspected, len(jobs), description="inspecting"))

    results = list(zip((version for version, _ in jobs), found, strict=True))
    if options.json:
        rows = [inspection_report.row(*result, options.loop) for result in results]
        report.print_json("inspect", doctor.environment(), rows)
    else:
        inspection_report.print_tables(found)
        if options.loop:
            for result in results:
                inspection_report.print_loop(*result)
        for version, one in results:
            for sentence in inspection.refuted(version, one):
                print(f"{one.version}, {one.arch}: not so: {sentence}")
    return BAD if any(inspection.refuted(*result) for result in results) else HELD


def _trace(options: argparse.Namespace) -> int:
    from . import trace
    from .check import parse_shape

    versions = _kernels(options)
    cases = [parse_shape(shape) for shape in options.shape or [TRACED_SHAPE]]
    jobs = [(version, case.m, case.n, case.k) for version in versions for case in cases]
    with report.progress() as progress:
        traces = [trace.trace(*job) for job in progress.track(jobs, description="counting")]

    if options.json:
        report.print_json("trace", doctor.environment(), [one.row() for one in traces])
        return HELD
    trace.print_table(traces)
    if len(traces) == 1:
        trace.print_lines(*traces)
    report.print_notes(trace.FIGURES)
    return HELD


def _explain(options: argparse.Namespace) -> int:
    from . import explanation

    if options.sms is None:
        for option in ("cc", "gpu"):
            if getattr(options, option):
                reason = f"--{option}: says of which GPU only together with --sms"
                return _cannot_tell(options, reason)
        from .check import usable_cupy

        cupy = usable_cupy()
        if cupy is None:
            reason = doctor.why_no_gpu(doctor.examine())
            example = 'say of which GPU, such as with --sms 132 --gpu "NVIDIA H200"'
            return _cannot_tell(options, f"there is no usable GPU: {reason}; or {example}")
        from .gpu import Gpu

        with errors_explained("the GPU here"):
            gpu = Gpu(cupy.cuda.Device()).hardware
            names, gpu_name, multiprocessors = gpu.versions, gpu.gpu_name, gpu.multiprocessors
    else:
        gpu_name, multiprocessors = options.gpu, options.sms
        if gpu_name and not measured_on(gpu_name):
            reason = f"--gpu: no choices were measured on a {gpu_name!r}"
            return _cannot_tell(options, f"{reason}; pass a whole name, as nvidia-smi -L shows it")
        names = tuple(LADDER) if options.cc is None else names_for(options.cc)
    if not names:
        return _cannot_tell(options, "that GPU runs no version of the ladder")

    m, n, k = options.shape
    estimates = explanation.explain(names, m, n, k, gpu_name, multiprocessors)
    if options.json:
        report.print_json("explain", doctor.environment(), [asdict(one) for one in estimates])
    else:
        explanation.print_table(estimates)
    return HELD


def _kernels(options: argparse.Namespace) -> list[Version]:
    """The kernels that a command was told, or the whole ladder."""
    told = [resolve(name) for name in options.version] + _own_kernels(options.source)
    return told or list(LADDER.values())


def _own_kernels(paths: Sequence[str]) -> list[Version]:
    """The kernels in these files; one whose name could mean another goes by its whole path."""
    own = [from_file(path) for path in paths]
    bearers = Counter([*LADDER, *(version.name for version in own)])
    return [
        replace(version, name=version.source) if bearers[version.name] > 1 else version
        for version in own
    ]


def _doctor(options: argparse.Namespace) -> int:
    findings = doctor.examine()
    if options.json:
        report.print_json("doctor", doctor.environment(), [asdict(f) for f in findings])
    else:
        report.print_table(("", "verdict", "seen"), [(f.name, f.verdict, f.seen) for f in findings])
        for finding in findings:
            if finding.advice:
                print(finding.line)
        report.print_notes({"": "", "CUDA": doctor.CUDA_NUMBERS})
    if not doctor.has_gpu(findings):
        if _gpu_is_required():
            reason = doctor.why_no_gpu(findings)
            return _cannot_tell(options, f"SGEMM_REQUIRE_GPU=1, and there is no GPU: {reason}")
        return BAD
    return BAD if any(finding.verdict == "problem" for finding in findings) else HELD


def _gpu_is_required() -> bool:
    return os.environ.get("SGEMM_REQUIRE_GPU") == "1"


def _failed(options: argparse.Namespace, error: Exception) -> int:
    """Say which error it was; of one that is not to be expected, where as well."""
    if isinstance(error, ModuleNotFoundError):
        return _cannot_tell(options, f"{error.name} is missing; pip install {error.name}")
    if isinstance(error, ImportError):
        broken = f"a package cannot be imported: {first_line(error)}"
        return _cannot_tell(options, f"{broken}; pip install --force-reinstall it")
    if isinstance(error, SgemmError | MemoryError | OSError):
        return _cannot_tell(options, str(error) or "out of memory")
    with suppress(OSError):
        traceback.print_exception(error)
    return _cannot_tell(options, f"a fault of sgemm itself: {type(error).__name__}: {error}")


def _cannot_tell(options: argparse.Namespace, reason: str) -> int:
    with suppress(OSError):  # the status tells it even where nothing can be printed
        print(f"python -m sgemm {options.command}: {in_one_line(reason)}", file=sys.stderr)
    return UNKNOWN


if __name__ == "__main__":
    sys.exit(main())
