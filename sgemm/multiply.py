"""``matmul`` and ``prepare``: check the arguments, then plan the launches that compute the product.

The plan is the same wherever the arrays live; a place (the GPU or the simulator) carries it out.
The logger ``sgemm`` tells it at level DEBUG: the version, what is copied and why, each launch.
"""

import logging
from ctypes import c_float
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from .causes import errors_explained
from .choices import choose
from .errors import ArgumentError, ArgumentTypeError
from .gpu import Gpu, read_scalar
from .ladder import Version
from .matrix import FLOAT4_BYTES, FLOAT_BYTES, Form, Matrix, form_of
from .places import (
    ACCEPTED,
    Hardware,
    Kernel,
    Launch,
    Place,
    cupy_array,
    is_on_gpu,
    offers_gpu_memory,
)
from .recipe import ASSERTIONS, Recipe, recipe_for
from .simulated import Simulated
from .versions import oldest, resolve

log = logging.getLogger("sgemm")

MAX_DIMENSION = 2**31 - 1
MAX_BLOCKS = 2**31 - 1  # the kernels' grids are one-dimensional

FLOAT32 = np.dtype(np.float32)

COPY_TILE = 32
THREADS = 256  # of the copying and the scaling kernel
COPY = Kernel(
    "copy_strided.cu",
    "copy_strided",
    {"TILE": COPY_TILE, "THREADS": THREADS, **ASSERTIONS},
    THREADS,
)
SCALE = Kernel("scale.cu", "scale", {"THREADS": THREADS, **ASSERTIONS}, THREADS)

_NONE = np.uintp(0)  # an address
_explained = errors_explained("matmul")


class Prepared:
    """A product ``out = alpha * a @ b + beta * out`` that is checked, planned and compiled: what
    ``prepare`` returns.

    Calling it launches the kernels on the current CuPy stream of the matrices' device and returns
    ``out``, as ``matmul`` would. It keeps the matrices and its workspaces.
    """

    def __init__(
        self, place: Place, launches: list[Launch], out: Any, kept: tuple[Any, ...]
    ) -> None:
        self._out = out
        self._place = place
        self._launches = launches
        self._kept = kept

    @property
    def out(self) -> Any:
        """The matrix that each call writes."""
        return self._out

    def __call__(self) -> Any:
        with _explained, self._place.context:
            self._launch()
        return self._out

    def _launch(self) -> None:
        for launch in self._launches:
            launch()
        self._place.hand_back()

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied and pickled: the launches are bound to addresses."""
        raise ArgumentTypeError(
            "a prepared product cannot be copied or pickled, as it launches on the addresses of "
            "its own matrices; call sgemm.prepare anew"
        )


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

    ``a`` (M×K) and ``b`` (K×N) are float32 arrays of any layout. NumPy arrays run in the simulator;
    CuPy arrays, and any object with ``__cuda_array_interface__`` or CUDA DLPack, on their GPU and
    its current CuPy stream, without waiting for the result. ``out`` (M×N), where given, is written
    in place and returned; otherwise the result is a new C-contiguous NumPy or CuPy array. ``beta``
    other than 0 needs ``out``; with ``beta`` 0 ``out`` is not read. ``alpha`` and ``beta`` are
    numbers or arrays without dimensions, taken as a Python float that is rounded to float32; one on
    a GPU is read, for which the host waits. ``version`` names a step of the ladder; None picks the
    one that should be the fastest for these sizes on this device. docs/calling.md tells which
    layouts are copied, what streams wait for and how long inputs must live.

    Before anything is launched it raises ArgumentTypeError (a TypeError) for a type, dtype or
    device that is not accepted; ArgumentError (a ValueError) for shapes that do not match, an
    ``out`` that is read-only or overlaps an input or itself, an unknown version, a scale on a GPU
    whose stream is being captured, and a result that needs more blocks than a grid holds;
    SimulatorLimitError for a product that would take the simulator too long; OutOfMemoryError (a
    MemoryError) where there is no memory for the result or for a copy.
    """
    with _explained:
        return _prepare(a, b, out, alpha, beta, version, at_once=True).out


def prepare(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    version: str | Version | None = None,
) -> Prepared:
    """Return what launches ``matmul(a, b, out=out, ...)`` whenever it is called, without checking
    or choosing anything again.

    The arguments are those of ``matmul``, and so are the errors, which are raised here. Without
    ``out`` each call writes the same new array. docs/calling.md has an example.
    """
    with _explained:
        return _prepare(a, b, out, alpha, beta, version, at_once=False)


def _prepare(
    a: Any,
    b: Any,
    out: Any,
    alpha: float,
    beta: float,
    version: str | Version | None,
    at_once: bool,
) -> Prepared:
    """Everything that a product takes before its launches. ``at_once`` launches them too, for this
    once: then workspaces belong to the graph where one is being captured."""
    ab_scale = _scalar("alpha", alpha)
    c_scale = _scalar("beta", beta)
    if out is None and c_scale != 0:
        raise ArgumentError(f"beta: {beta} needs out, the matrix that it scales")
    requested = None if version is None else resolve(version)

    place, arrays = locate(a, b, out)
    a_matrix = _matrix(place, "a", a, arrays["a"])
    b_matrix = _matrix(place, "b", b, arrays["b"])
    m, k = a_matrix.form.rows, a_matrix.form.cols
    k_of_b, n = b_matrix.form.rows, b_matrix.form.cols
    if k != k_of_b:
        raise ArgumentError(f"b: has {k_of_b} rows where a has {k} columns; K must be the same")
    if out is not None:
        c = _matrix(place, "out", out, arrays["out"])
        if (c.form.rows, c.form.cols) != (m, n):
            raise ArgumentError(f"out: has shape {arrays['out'].shape}; a @ b has {(m, n)}")
        _check_out(c, a_matrix, b_matrix)
    hardware = place.hardware
    reads_ab = k > 0 and ab_scale != 0  # otherwise the result is beta * out, whatever a and b hold
    multiplies, scales = m and n and reads_ab, m and n and not reads_ab and c_scale != 1
    c_form = form_of(m, n, n, 1, 0) if out is None else c.form  # place.empty's, in C's order
    if multiplies:
        chosen, recipe = _decide(requested, hardware, a_matrix.form, b_matrix.form, c_form)
    else:
        _require_runs(requested or oldest(), hardware)
    if multiplies or scales:
        place.check_work(m, n, k if reads_ab else 0)

    with place.context:
        if out is None:
            out = arrays["out"] = place.empty((m, n))
            c = Matrix("out", place.address(out), c_form)
        launches = []
        if multiplies:
            log.debug("%dx%dx%d on %s with %s", m, n, k, hardware.name, chosen.name)
            matrices = ab_scale, a_matrix, b_matrix, c_scale, c
            launches = _multiply(place, recipe, *matrices, reusable=not at_once)
        elif scales:
            log.debug("%dx%dx%d on %s: out is scaled", m, n, k, hardware.name)
            launches = [_scale(place, c_scale, c)]
        prepared = Prepared(place, launches, out, (a, b, arrays))
        if at_once:
            prepared._launch()
    return prepared


def locate(a: Any, b: Any, out: Any) -> tuple[Place, dict[str, Any]]:
    """The place that ``a``, ``b`` and ``out`` (None: absent) share, and their arrays by name."""
    given = {"a": a, "b": b}
    if out is not None:
        given["out"] = out
    if a is None or b is None:
        missing = "a" if a is None else "b"
        raise ArgumentTypeError(f"{missing}: None is not accepted; {ACCEPTED}")
    cupys = cupy_array()
    on_gpu = isinstance(a, cupys) or is_on_gpu("a", a)
    for name, x in given.items():
        if x is not a and (isinstance(x, cupys) or is_on_gpu(name, x)) != on_gpu:
            where_a, where = ("on a GPU", "in NumPy") if on_gpu else ("in NumPy", "on a GPU")
            raise ArgumentTypeError(
                f"{name}: lives {where} and a lives {where_a}; all matrices must live in one place"
            )
    return Gpu.of(given) if on_gpu else Simulated.of(given)


def _multiply(
    place: Place,
    recipe: Recipe,
    alpha: np.float32,
    a: Matrix,
    b: Matrix,
    beta: np.float32,
    c: Matrix,
    reusable: bool,
) -> list[Launch]:
    """C = alpha * A @ B + beta * C."""
    if recipe.transposed:
        a, b, c = b.transposed(), a.transposed(), c.transposed()
    launches = []
    addresses = [a.address, b.address, c.address]
    for i, why_copied in enumerate(recipe.copies):
        if why_copied:
            matrix, form = (a, b, c)[i], recipe.forms[i]
            log.debug("%s is copied: %s", matrix.name, why_copied)
            addresses[i] = place.workspace(form.floats, reusable)
            if matrix is not c or beta != 0:
                launches.append(_copy(place, matrix, Matrix(matrix.name, addresses[i], form)))
    at_a, at_b, at_c = map(np.uintp, addresses)
    lda, ldb, ldc = recipe.leading
    arguments: tuple[np.generic, ...] = *recipe.sizes, alpha, at_a, lda, at_b, ldb, beta, at_c, ldc
    if recipe.shared_tiles is not None:
        at_partials = at_arrivals = _NONE
        if recipe.arrivals:
            partials = place.workspace(recipe.partials + recipe.arrivals, reusable)
            arrivals = partials + recipe.partials * FLOAT_BYTES
            launches.append(place.clearing(arrivals, recipe.arrivals))
            at_partials, at_arrivals = np.uintp(partials), np.uintp(arrivals)
        arguments += recipe.shared_tiles, at_partials, at_arrivals
    launches.append(_launch_of(place, recipe.kernel, recipe.plan.blocks, arguments))
    if recipe.copies[-1]:
        launches.append(_copy(place, Matrix(c.name, addresses[-1], recipe.forms[-1]), c))
    return launches


def _copy(place: Place, source: Matrix, target: Matrix) -> Launch:
    """target = source, between any two layouts."""
    rows, cols = source.form.rows, source.form.cols
    blocks = -(-rows // COPY_TILE) * -(-cols // COPY_TILE)
    arguments = *_int32(rows, cols), *_pointer(source), *_pointer(target)
    return _launch_of(place, COPY, blocks, arguments)


def _scale(place: Place, beta: np.float32, c: Matrix) -> Launch:
    """C = beta * C."""
    rows, cols = c.form.rows, c.form.cols
    blocks = -(-rows * cols // THREADS)
    return _launch_of(place, SCALE, blocks, (*_int32(rows, cols), beta, *_pointer(c)))


def _launch_of(
    place: Place, kernel: Kernel, blocks: int, arguments: tuple[np.generic, ...]
) -> Launch:
    log.debug(
        "%s: %d blocks of %d threads, compiled with %s",
        kernel.source,
        blocks,
        kernel.threads,
        kernel.defines,
    )
    return place.launch_of(kernel, blocks, arguments)


def _int32(*values: int) -> tuple[np.int32, ...]:
    return tuple(map(np.int32, values))


def _pointer(matrix: Matrix) -> tuple[np.generic, ...]:
    """Address and both strides, as the copying and the scaling kernel expect them."""
    form = matrix.form
    return np.uintp(matrix.address), np.int64(form.row_stride), np.int64(form.col_stride)


def _scalar(name: str, value: Any) -> np.float32:
    """``value`` rounded to float32; beyond its range that is inf."""
    number = value if type(value) is float else _float(name, value)
    return np.float32(c_float(number).value)  # NumPy alone would warn of an overflow


def _float(name: str, value: Any) -> float:
    if type(value) is not int and _has_no_dimensions(value) and offers_gpu_memory(name, value):
        value = read_scalar(name, value)
    try:
        return _real_number(value)
    except Exception as error:  # other libraries' scalars have errors of their own
        kind = type(value).__name__
        if isinstance(value, np.ndarray):
            kind += f" of {value.dtype} and shape {value.shape}"
        raise ArgumentTypeError(f"{name}: expected a real number, found {kind}") from error


def _has_no_dimensions(value: Any) -> bool:
    try:
        return bool(getattr(value, "ndim", 0) == 0)
    except Exception:  # whatever is no number at all
        return False


def _real_number(value: Any) -> float:
    if not (hasattr(type(value), "__float__") or hasattr(type(value), "__index__")):
        raise TypeError  # float() would take text, and any memory for text
    if isinstance(value, np.ma.MaskedArray):
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


def _matrix(place: Place, name: str, given: Any, array: Any) -> Matrix:
    """``array`` as a matrix that the kernels can address; the caller's is ``given``."""
    if array.dtype != FLOAT32:
        raise ArgumentTypeError(
            f"{name}: dtype {array.dtype} is not accepted; the kernels compute in float32: "
            f"pass {_cast(name, given, array.dtype)}"
        )
    address = place.address(array)
    form = _form(name, array.shape, array.strides, address % FLOAT4_BYTES)
    return Matrix(name, address, form)


def _cast(name: str, given: Any, dtype: np.dtype) -> str:
    """What to pass in place of an array of that dtype."""
    if name == "out":  # a cast would be another matrix, and the result would be lost
        return "an out of float32, or none and take what is returned"
    if dtype.names:
        name += f"[{dtype.names[0]!r}]"
    if dtype.kind == "c":
        name += ".real"
    return f"{name}.astype('float32')" if hasattr(given, "astype") else f"{name}.float()"  # torch's


def _copy_of(name: str) -> str:
    """What to pass in place of an array that lies so that no kernel can read it."""
    return "a matrix of its own" if name == "out" else f"{name}.copy()"


@lru_cache(4096)
def _form(name: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Form:
    """The form of an array with such strides, in bytes, so many bytes after a 16-byte boundary."""
    if len(shape) != 2:
        matrix = {0: f"{name}[None, None]", 1: f"{name}[:, None] or {name}[None, :]"}
        raise ArgumentError(
            f"{name}: has {len(shape)} dimensions; matmul takes 2-D matrices: "
            f"pass {matrix.get(len(shape), 'those of the stack one by one')}"
        )
    (rows, cols), (row_stride, col_stride) = shape, strides
    if rows > MAX_DIMENSION or cols > MAX_DIMENSION:
        raise ArgumentError(f"{name}: has shape {shape}; a dimension holds {MAX_DIMENSION}")
    if (row_stride % FLOAT_BYTES and rows > 1 and cols) or (
        col_stride % FLOAT_BYTES and cols > 1 and rows
    ):
        raise ArgumentError(
            f"{name}: its strides {strides} are not multiples of {FLOAT_BYTES} bytes; "
            f"pass {_copy_of(name)}"
        )
    if offset % FLOAT_BYTES and rows and cols:
        raise ArgumentError(
            f"{name}: its address is not a multiple of {FLOAT_BYTES} bytes; pass {_copy_of(name)}"
        )
    return form_of(rows, cols, row_stride // FLOAT_BYTES, col_stride // FLOAT_BYTES, offset)


def _check_out(c: Matrix, *operands: Matrix) -> None:
    if c.form.repeats_an_element:
        raise ArgumentError("out: some of its elements share an address; pass a matrix of its own")
    for operand in operands:
        if c.overlaps(operand):
            raise ArgumentError(f"out: overlaps {operand.name}; pass a matrix of its own")


@lru_cache(4096)
def _decide(
    requested: Version | None, hardware: Hardware, a: Form, b: Form, c: Form
) -> tuple[Version, Recipe]:
    """The version for a product of such matrices, and how it computes it."""
    m, n, k = c.rows, c.cols, a.cols

    def by(version: Version) -> tuple[Version, Recipe]:
        _check_grid(version, m, n)
        return version, recipe_for(version, a, b, c, hardware.multiprocessors)

    chosen, recipe = by(_choose(requested, hardware, m, n, k))
    if recipe.transposed and requested is None:  # then tiles must suit C.T, which is n×m
        chosen, recipe = by(_choose(None, hardware, n, m, k))
    return chosen, recipe


def _choose(requested: Version | None, hardware: Hardware, m: int, n: int, k: int) -> Version:
    """The version asked for, or the one of the ladder that should be the fastest here."""
    if requested is None and hardware.versions:
        names, gpu_name, sms = hardware.versions, hardware.gpu_name, hardware.multiprocessors
        return choose(names, m, n, k, gpu_name, sms)
    chosen = requested or oldest()
    _require_runs(chosen, hardware)
    return chosen


def _require_runs(version: Version, hardware: Hardware) -> None:
    if not hardware.runs(version):
        needed = "{}.{}".format(*version.min_compute_capability)
        raise ArgumentError(
            f"version: {version.name} needs compute capability {needed}; {hardware.name} has less"
        )


def _check_grid(version: Version, m: int, n: int) -> None:
    blocks = max(version.tiles(m, n), version.tiles(n, m))  # or the transposed product's
    if blocks > MAX_BLOCKS:
        raise ArgumentError(
            f"version: {version.name} needs {blocks} blocks for a {m}x{n} result; "
            f"a grid holds {MAX_BLOCKS}"
        )
