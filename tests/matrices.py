"""Matrices in every layout, inside buffers that show whether anything around them was written."""

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from places import Place

GUARD = 64  # floats before and after a matrix
POISON = 0x7FC0DEAD  # as a float32 a NaN, recognisable by its payload
PROT_NONE = 0  # which Python's mmap has no name for


@dataclass(frozen=True)
class Layout:
    """How a matrix lies in a larger buffer.

    It starts ``offset`` floats past a 16-byte boundary, is stored by rows or, ``transposed``, by
    columns, which are ``padding`` floats longer than they need be; the view takes every
    ``row_step``-th of the stored rows and every ``col_step``-th of the stored columns, backwards
    where that is negative. With ``same_rows`` or ``same_cols`` there is but one row or column,
    broadcast with stride 0: for inputs only.
    """

    transposed: bool = False
    offset: int = 0
    padding: int = 0
    row_step: int = 1
    col_step: int = 1
    same_rows: bool = False
    same_cols: bool = False

    def size(self, rows: int, cols: int) -> int:
        """How many floats a buffer for a rows×cols matrix has, its guards included."""
        stored_rows, width = self._stored(rows, cols)
        return GUARD + self.offset + stored_rows * (width + self.padding) + GUARD

    def view(self, buffer: Any, rows: int, cols: int) -> Any:
        """The rows×cols matrix in a buffer of that size, without what is broadcast."""
        stored_rows, width = self._stored(rows, cols)
        pitch = width + self.padding
        start = GUARD + self.offset
        stored = buffer[start : start + stored_rows * pitch].reshape(stored_rows, pitch)
        matrix = stored[:: self.row_step, :width][:, :: self.col_step]
        return matrix.T if self.transposed else matrix

    def _stored(self, rows: int, cols: int) -> tuple[int, int]:
        rows = min(rows, 1) if self.same_rows else rows
        cols = min(cols, 1) if self.same_cols else cols
        if self.transposed:
            rows, cols = cols, rows
        return rows * abs(self.row_step), cols * abs(self.col_step)


PLAIN = Layout()


class GuardedMatrix:
    """A matrix in a poisoned buffer; ``values`` None leaves the matrix itself poisoned as well.

    ``view`` is the matrix in the place; the buffer crosses over once before and once after it is
    used, as a whole.
    """

    def __init__(
        self, place: Place, shape: tuple[int, int], layout: Layout, values: np.ndarray | None
    ) -> None:
        self._place, self._shape, self._layout = place, shape, layout
        size = layout.size(*shape)
        unaligned = np.full(size + 3, POISON, np.uint32)
        bits = unaligned[-unaligned.ctypes.data // 4 % 4 :][:size]
        if values is not None:
            stored = self._stored(bits)
            rows, cols = stored.shape
            stored[...] = values[:rows, :cols]
        self._before = bits.copy()
        self._bits = place.xp.asarray(bits)  # NumPy takes it as it is, CuPy copies to 512 bytes
        stored = self._stored(self._bits)
        self.view = stored if stored.shape == shape else place.xp.broadcast_to(stored, shape)

    def values_before(self) -> np.ndarray:
        return np.broadcast_to(self._stored(self._before), self._shape)

    def values_now(self) -> np.ndarray:
        return np.broadcast_to(self._stored(self._now), self._shape)

    def is_unchanged(self) -> bool:
        """Whether neither the matrix nor anything around it was written, bit for bit."""
        return np.array_equal(self._now, self._before)

    def guards_are_intact(self) -> bool:
        """Whether everything around the matrix still holds its poison, bit for bit."""
        bits = self._now.copy()
        self._stored(bits)[...] = self._stored(np.full_like(bits, POISON))
        return bool((bits == POISON).all())

    @cached_property
    def _now(self) -> np.ndarray:
        return self._place.to_host(self._bits)

    def _stored(self, bits: Any) -> Any:
        return self._layout.view(bits.view(np.float32), *self._shape)


@contextmanager
def between_fences(values: np.ndarray, *, at_end: bool) -> Iterator[np.ndarray]:
    """A copy of the matrix in host memory that ends, or begins, at a page nobody may touch: a read
    outside of it, which no poison shows unless it reaches the result, ends the process."""
    page = mmap.PAGESIZE
    size = -(-values.nbytes // page) * page
    memory = mmap.mmap(-1, page + size + page)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fences = first, first + page + size
    _protect(fences, page, PROT_NONE)
    start = page + size - values.nbytes if at_end else page
    order = "C" if values.flags.c_contiguous else "F"
    matrix = np.ndarray(values.shape, values.dtype, memory, start, order=order)
    matrix[...] = values
    try:
        yield matrix
    finally:
        _protect(fences, page, mmap.PROT_READ | mmap.PROT_WRITE)


def _protect(addresses: tuple[int, ...], length: int, protection: int) -> None:
    for address in addresses:
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), length, protection):
            raise OSError("mprotect failed")
