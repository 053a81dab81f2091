"""``matmul``: checks its arguments, then plans the kernel launches that compute the product.

The plan is the same wherever the arrays live; a place (the GPU or the simulator) carries it out.
The logger ``sgemm`` tells it at level DEBUG: the version, what is copied and why, each launch.
"""

import logging
import os
from contextlib import ExitStack
from typing import Any

import numpy as np

from .causes import cuda_errors_explained
from .errors import ArgumentError, ArgumentTypeError
from .ladder import LADDER, Layout, Plan, Version, fastest
from .matrix import FLOAT_BYTES, Matrix, padded
from .places import Place, locate, offers_gpu_memory
from .versions import resolve

log = logging.getLogger("sgemm")

MAX_DIMENSION = 2**31 - 1
MAX_BLOCKS = 2**31 - 1  # the kernels' grids are one-dimensional

COPY_TILE = 32
THREADS = 256  # of the copying and the scaling kernel

# An operand whose rows do not all start on a 16-byte boundary rules float4 out. From this K on a
# copy that has them aligned costs less than the scalar path (docs/alignment.md has the figures).
ALIGNED_COPY_MIN_K = 256


@cuda_errors_explained("matmul")
def matmul(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    version: str | Version | None = None,
) -> Any:
    """Return ``alpha * a @ b + beta * out`` in FP32.

    ``a`` (M×K) and ``b`` (K×N) are float32 arrays of any layout. NumPy arrays run in the
    simulator; CuPy arrays, and any object with ``__cuda_array_interface__`` or CUDA DLPack, on
    their GPU and its current CuPy stream, without waiting for the result. ``out`` (M×N), where
    given, is written in place and returned; otherwise the result is a new C-contiguous NumPy or
    CuPy array. ``beta`` other than 0 needs ``out``; with ``beta`` 0 ``out`` is not read. ``alpha``
    and ``beta`` are numbers or arrays without dimensions, rounded to float32 first; one on a GPU
    is read, for which the host waits. ``version`` names a step of the ladder; None picks the
    one that should be the fastest for these sizes on this device. docs/calling.md tells which
    layouts are copied, what streams wait for and how long inputs must live.

    Before anything is launched it raises ArgumentTypeError (a TypeError) for a type, dtype or
    device that is not accepted; ArgumentError (a ValueError) for shapes that do not match, an
    ``out`` that is read-only or overlaps an input or itself, an unknown version, a scale on a GPU
    whose stream is being captured, and a result that needs more blocks than a grid holds;
    SimulatorLimitError for a product that would take the simulator too long; OutOfMemoryError (a
    MemoryError) where there is no memory for the result or for a copy.
    """
    ab_scale = _scalar("alpha", alpha)
    c_scale = _scalar("beta", beta)
    if out is None and c_scale != 0:
        raise ArgumentError(f"beta: {beta} needs out, the matrix that it scales")
    requested = None if version is None else resolve(version)

    place, arrays = locate(a, b, out)
    m, k = _check_array("a", a, arrays["a"])
    k_of_b, n = _check_array("b", b, arrays["b"])
    if k != k_of_b:
        raise ArgumentError(f"b: has {k_of_b} rows where a has {k} columns; K must be the same")
    if out is not None and _check_array("out", out, arrays["out"]) != (m, n):
        raise ArgumentError(f"out: has shape {arrays['out'].shape}; a @ b has {(m, n)}")
    reads_ab = k > 0 and ab_scale != 0  # otherwise the result is beta * out, whatever a and b hold
    chosen = _choose(requested, place, m, n, k)
    if m and n:
        if reads_ab:
            _check_grid(chosen, m, n)
        place.check_work(m, n, k if reads_ab else 0)

    target = place.empty((m, n)) if out is None else arrays["out"]
    if m and n:
        c = _matrix(place, "out", target)
        operands = {name: _matrix(place, name, arrays[name]) for name in ("a", "b")} if k else {}
        if out is not None:
            _check_out(c, operands)
        log.debug("%dx%dx%d on %s with %s", m, n, k, place.name, chosen.name)
        if reads_ab:
            _multiply(place, chosen, ab_scale, operands["a"], operands["b"], c_scale, c)
        elif c_scale != 1:
            _scale(place, c_scale, c)
        place.hand_back()
    return target if out is None else out


def _multiply(
    place: Place,
    version: Version,
    alpha: np.float32,
    a: Matrix,
    b: Matrix,
    beta: np.float32,
    c: Matrix,
) -> None:
    """C = alpha * A @ B + beta * C, copying what the version cannot read or write itself."""
    copies = _copies(version, a, b, c)
    if copies:  # C.T = B.T @ A.T may need fewer, as for Fortran's layouts
        transposed = b.transposed(), a.transposed(), c.transposed()
        if len(copies_transposed := _copies(version, *transposed)) < len(copies):
            (a, b, c), copies = transposed, copies_transposed
    with ExitStack() as workspaces:

        def workspace(matrix: Matrix, layout: Layout) -> Matrix:
            log.debug("%s is copied: %s", matrix.name, copies[matrix.name])
            rows, cols = matrix.rows, matrix.cols
            distance, count = (padded(cols), rows) if layout == "row" else (padded(rows), cols)
            address = workspaces.enter_context(place.workspace(distance * count))
            strides = (distance, 1) if layout == "row" else (1, distance)
            return Matrix(matrix.name, address, rows, cols, *strides)

        def readable(matrix: Matrix, layout: Layout) -> Matrix:
            if matrix.name not in copies:
                return matrix
            converted = workspace(matrix, layout)
            _copy(place, matrix, converted)
            return converted

        a = readable(a, "row")
        b = readable(b, version.b_layout)
        result = c
        if c.name in copies:
            result = workspace(c, "row")
            if beta != 0:
                _copy(place, c, result)

        float4 = a.allows_float4("row") or version.a_by_floats
        float4 &= b.allows_float4(version.b_layout)
        plan = version.plan(c.rows, c.cols, a.cols, place.multiprocessors)
        _launch(
            place,
            version.source,
            "sgemm",
            version.defines(float4),
            plan.blocks,
            version.threads,
            (
                *_int32(c.rows, c.cols, a.cols),
                alpha,
                *_operand(a, "row"),
                *_operand(b, version.b_layout),
                beta,
                *_operand(result, "row"),
                *_sharing(place, version, plan, workspaces),
            ),
            version.dynamic_shared_bytes,
        )
        if result is not c:
            _copy(place, result, c)


def _sharing(
    place: Place, version: Version, plan: Plan, workspaces: ExitStack
) -> tuple[np.generic, ...]:
    """The arguments of a stream-K kernel that say which tiles are shared, and where: two slots of
    a tile for each block, and a count of arrivals for each micro-tile."""
    if not version.stream_k:
        return ()
    partials = arrivals = 0
    if plan.shared_tiles:
        floats = 2 * plan.blocks * version.tile[0] * version.tile[1]
        counts = plan.shared_tiles * version.multipliers
        partials = workspaces.enter_context(place.workspace(floats, zeros=counts))
        arrivals = partials + floats * FLOAT_BYTES
    return *_int32(plan.shared_tiles), np.uintp(partials), np.uintp(arrivals)


def _copies(version: Version, a: Matrix, b: Matrix, c: Matrix) -> dict[str, str]:
    """Which matrices the version's kernel cannot read or write where they are, and why."""
    float4_pays = version.float4 and a.cols >= ALIGNED_COPY_MIN_K
    by_float4s = (b,) if version.a_by_floats else (a, b)
    layouts: tuple[tuple[Matrix, Layout], ...] = (a, "row"), (b, version.b_layout), (c, "row")
    reasons = {}
    for matrix, layout in layouts:
        if not matrix.is_contiguous(layout):
            reasons[matrix.name] = f"{version.name} takes it by {layout}s, which are not contiguous"
        elif float4_pays and matrix in by_float4s and not matrix.allows_float4(layout):
            reasons[matrix.name] = f"its {layout}s do not all start on 16-byte boundaries"
    return reasons


def _copy(place: Place, source: Matrix, target: Matrix) -> None:
    """target = source, between any two layouts."""
    _launch(
        place,
        "copy_strided.cu",
        "copy_strided",
        {"TILE": COPY_TILE, "THREADS": THREADS},
        -(-source.rows // COPY_TILE) * -(-source.cols // COPY_TILE),
        THREADS,
        (*_int32(source.rows, source.cols), *_pointer(source), *_pointer(target)),
    )


def _scale(place: Place, beta: np.float32, c: Matrix) -> None:
    """C = beta * C."""
    _launch(
        place,
        "scale.cu",
        "scale",
        {"THREADS": THREADS},
        -(-c.rows * c.cols // THREADS),
        THREADS,
        (*_int32(c.rows, c.cols), beta, *_pointer(c)),
    )


def _launch(
    place: Place,
    source: str,
    entry: str,
    defines: dict[str, int],
    blocks: int,
    threads: int,
    args: tuple[np.generic, ...],
    dynamic_shared_bytes: int = 0,
) -> None:
    """Launch a kernel; SGEMM_DEBUG=1 in the environment turns its device-side assertions on."""
    if os.environ.get("SGEMM_DEBUG") == "1":
        defines = {**defines, "SGEMM_DEBUG": 1}
    log.debug("%s: %d blocks of %d threads, compiled with %s", source, blocks, threads, defines)
    place.launch(source, entry, defines, blocks, threads, args, dynamic_shared_bytes)


def _int32(*values: int) -> tuple[np.int32, ...]:
    return tuple(map(np.int32, values))


def _operand(matrix: Matrix, layout: Layout) -> tuple[np.generic, ...]:
    """Address and leading dimension, as the versions of the ladder expect them."""
    return np.uintp(matrix.address), np.int64(matrix.leading_dimension(layout))


def _pointer(matrix: Matrix) -> tuple[np.generic, ...]:
    """Address and both strides, as the copying and the scaling kernel expect them."""
    return np.uintp(matrix.address), np.int64(matrix.row_stride), np.int64(matrix.col_stride)


def _scalar(name: str, value: Any) -> np.float32:
    """``value`` rounded to float32; beyond its range that is inf."""
    if getattr(value, "ndim", 0) == 0 and offers_gpu_memory(name, value):
        from .gpu import read_scalar

        value = read_scalar(name, value)
    try:
        number = _real_number(value)
    except Exception as error:  # other libraries' scalars have errors of their own
        kind = type(value).__name__
        if isinstance(value, np.ndarray):
            kind += f" of {value.dtype} and shape {value.shape}"
        raise ArgumentTypeError(f"{name}: expected a real number, found {kind}") from error
    with np.errstate(over="ignore"):
        return np.float32(number)


def _real_number(value: Any) -> float:
    if isinstance(value, str | bytes | bytearray | np.ma.MaskedArray):  # float() takes them
        raise TypeError
    if getattr(value, "ndim", 0) != 0 or "complex" in str(getattr(value, "dtype", "")):
        raise TypeError
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind == "O":
            return _real_number(value.item())
        if value.dtype.kind not in "biuf":
            raise TypeError
    try:
        return float(value)
    except OverflowError:  # an int beyond float64
        return np.inf if value > 0 else -np.inf


def _check_array(name: str, given: Any, array: Any) -> tuple[int, int]:
    """The shape of a matrix that the kernels can address; ``array`` is the caller's, ``given``."""
    if array.dtype != np.float32:
        cast = "astype('float32')" if hasattr(given, "astype") else "float()"  # torch's
        raise ArgumentTypeError(
            f"{name}: dtype {array.dtype} is not accepted; the kernels compute in float32: "
            f"pass {name}.{cast}"
        )
    if array.ndim != 2:
        raise ArgumentError(f"{name}: has {array.ndim} dimensions; matmul takes 2-D matrices")
    if max(array.shape) > MAX_DIMENSION:
        raise ArgumentError(f"{name}: has shape {array.shape}; a dimension holds {MAX_DIMENSION}")
    used_strides = (s for s, length in zip(array.strides, array.shape, strict=True) if length > 1)
    if array.size and any(stride % FLOAT_BYTES for stride in used_strides):
        raise ArgumentError(
            f"{name}: its strides {array.strides} are not multiples of {FLOAT_BYTES} bytes; "
            f"pass {name}.copy()"
        )
    rows, cols = array.shape
    return rows, cols


def _matrix(place: Place, name: str, array: Any) -> Matrix:
    address = place.address(array)
    if address % FLOAT_BYTES:
        raise ArgumentError(
            f"{name}: its address {address:#x} is not a multiple of {FLOAT_BYTES} bytes; "
            f"pass {name}.copy()"
        )
    return Matrix(name, address, *array.shape, *(stride // FLOAT_BYTES for stride in array.strides))


def _check_out(c: Matrix, operands: dict[str, Matrix]) -> None:
    if c.repeats_an_element():
        raise ArgumentError("out: some of its elements share an address; pass a matrix of its own")
    for name, operand in operands.items():
        if c.overlaps(operand):
            raise ArgumentError(f"out: overlaps {name}; pass a matrix of its own")


def _choose(requested: Version | None, place: Place, m: int, n: int, k: int) -> Version:
    """The version asked for, or the one of the ladder that should be the fastest here."""
    if requested is None and place.versions:
        return LADDER[fastest(place.versions, m, n, k, place.multiprocessors)]
    oldest = min(LADDER.values(), key=lambda version: version.min_compute_capability)
    chosen = requested or oldest
    if not place.runs(chosen):
        needed = "{}.{}".format(*chosen.min_compute_capability)
        raise ArgumentError(
            f"version: {chosen.name} needs compute capability {needed}; {place.name} has less"
        )
    return chosen


def _check_grid(version: Version, m: int, n: int) -> None:
    blocks = max(version.tiles(m, n), version.tiles(n, m))  # or the transposed product's
    if blocks > MAX_BLOCKS:
        raise ArgumentError(
            f"version: {version.name} needs {blocks} blocks for a {m}x{n} result; "
            f"a grid holds {MAX_BLOCKS}"
        )
