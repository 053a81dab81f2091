"""Matrices as the kernels see them: addresses, and how the floats lie there."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from .ladder import Layout

FLOAT_BYTES = 4
FLOAT4_BYTES = 16
MAX_OVERLAP_WORK: Any = 100_000  # then an overlap is assumed; two dimensions need far less


@dataclass(frozen=True, eq=False)
class Form:
    """How rows×cols floats lie: element (i, j) ``i * row_stride + j * col_stride`` floats after
    (0, 0), which lies ``offset`` bytes after a 16-byte boundary.

    Strides are of either sign; the stride of a dimension of size 1 is never used. ``form_of`` makes
    each form once, so what depends on it alone is kept with it and found by identity.
    """

    rows: int
    cols: int
    row_stride: int
    col_stride: int
    offset: int = 0

    def transposed(self) -> "Form":
        """The same floats with rows and columns exchanged."""
        return form_of(self.cols, self.rows, self.col_stride, self.row_stride, self.offset)

    def packed(self, layout: Layout) -> "Form":
        """As many floats with rows (columns) that are contiguous and allow float4."""
        if layout == "row":
            return form_of(self.rows, self.cols, padded(self.cols), 1)
        return form_of(self.rows, self.cols, 1, padded(self.rows))

    @property
    def floats(self) -> int:
        """The size of a packed form, with its padding."""
        return max(self.rows * self.row_stride, self.cols * self.col_stride)

    def is_contiguous(self, layout: Layout) -> bool:
        """Whether each row (column) is contiguous, as a kernel that reads ``layout`` expects."""
        length, step = (
            (self.cols, self.col_stride) if layout == "row" else (self.rows, self.row_stride)
        )
        return length <= 1 or step == 1

    def leading_dimension(self, layout: Layout) -> int:
        """How many floats apart the rows (columns) start."""
        count, distance, length = (
            (self.rows, self.row_stride, self.cols)
            if layout == "row"
            else (self.cols, self.col_stride, self.rows)
        )
        return distance if count > 1 else padded(length)

    def allows_float4(self, layout: Layout) -> bool:
        """Whether every row (column) starts on a 16-byte boundary, as float4 accesses need."""
        return self.offset % FLOAT4_BYTES == 0 and self.leading_dimension(layout) % 4 == 0

    @cached_property
    def repeats_an_element(self) -> bool:
        """Whether two different (i, j) share an address."""
        if self.rows * self.cols <= 1:
            return False
        divisor = math.gcd(self.row_stride, self.col_stride)
        if divisor == 0:
            return True
        # (i, j) and (i + down, j - across) are the nearest pair at one address
        down, across = abs(self.col_stride) // divisor, abs(self.row_stride) // divisor
        return down < self.rows and across < self.cols

    @cached_property
    def span(self) -> tuple[int, int]:
        """Where its lowest element starts and its highest one ends, in bytes from (0, 0)."""
        down, across = (self.rows - 1) * self.row_stride, (self.cols - 1) * self.col_stride
        start = FLOAT_BYTES * (min(down, 0) + min(across, 0))
        return start, start + FLOAT_BYTES * (abs(down) + abs(across) + 1)


form_of = lru_cache(4096)(Form)


class Matrix(NamedTuple):
    """Floats of a form, (0, 0) at ``address``. ``name`` is what messages call it."""

    name: str
    address: int
    form: Form

    def transposed(self) -> "Matrix":
        """The same floats with rows and columns exchanged."""
        return Matrix(f"{self.name}.T", self.address, self.form.transposed())

    def overlaps(self, other: "Matrix") -> bool:
        """Whether the two share an element; disjoint slices of one buffer do not."""
        start, end = self.form.span
        others_start, others_end = other.form.span
        distance = other.address - self.address
        if distance + others_end <= start or end <= distance + others_start:
            return False
        try:
            return np.shares_memory(_Addresses(self), _Addresses(other), MAX_OVERLAP_WORK)
        except np.exceptions.TooHardError:
            return True


def padded(length: int) -> int:
    """The smallest multiple of 4 that holds ``length`` floats."""
    return -(-length // 4) * 4


class _Addresses:
    """Lets NumPy solve for shared addresses; the memory behind them is never touched."""

    def __init__(self, matrix: Matrix) -> None:
        form = matrix.form
        self.__array_interface__ = {
            "version": 3,
            "typestr": "<f4",
            "data": (matrix.address, True),
            "shape": (form.rows, form.cols),
            "strides": (form.row_stride * FLOAT_BYTES, form.col_stride * FLOAT_BYTES),
        }
