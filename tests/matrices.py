"""Matrices in every layout, inside buffers that show whether anything around them was written."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

GUARD = 64  # floats before and after a matrix
POISON = 0x7FC0DEAD  # as a float32 a NaN, recognisable by its payload


@dataclass(frozen=True)
class Layout:
    """How a matrix lies in a larger buffer.

    It starts ``offset`` floats past a 16-byte boundary, is stored by rows or, ``transposed``, by
    columns, which are ``padding`` floats longer than they need be; the view takes every
    ``row_step``-th of the stored rows and every ``col_step``-th of the stored columns, backwards
    where that is negative.
    """

    transposed: bool = False
    offset: int = 0
    padding: int = 0
    row_step: int = 1
    col_step: int = 1

    def size(self, rows: int, cols: int) -> int:
        """How many floats a buffer for a rows×cols matrix has, its guards included."""
        stored_rows, width = self._stored(rows, cols)
        return GUARD + self.offset + stored_rows * (width + self.padding) + GUARD

    def view(self, buffer: Any, rows: int, cols: int) -> Any:
        """The rows×cols matrix in a buffer of that size."""
        stored_rows, width = self._stored(rows, cols)
        pitch = width + self.padding
        start = GUARD + self.offset
        stored = buffer[start : start + stored_rows * pitch].reshape(stored_rows, pitch)
        matrix = stored[:: self.row_step, :width][:, :: self.col_step]
        return matrix.T if self.transposed else matrix

    def _stored(self, rows: int, cols: int) -> tuple[int, int]:
        if self.transposed:
            rows, cols = cols, rows
        return rows * abs(self.row_step), cols * abs(self.col_step)


PLAIN = Layout()


class GuardedMatrix:
    """A matrix in a poisoned buffer; ``values`` None leaves the matrix itself poisoned as well."""

    def __init__(
        self, xp: ModuleType, shape: tuple[int, int], layout: Layout, values: np.ndarray | None
    ) -> None:
        self._shape, self._layout = shape, layout
        size = layout.size(*shape)
        unaligned = xp.full(size + 3, POISON, xp.uint32)
        address = unaligned.ctypes.data if xp is np else unaligned.data.ptr
        self._bits = unaligned[-address // 4 % 4 :][:size]
        self.view = layout.view(self._bits.view(xp.float32), *shape)
        if values is not None:
            self.view[...] = xp.asarray(values)

    def guards_are_intact(self) -> bool:
        """Whether everything around the matrix still holds its poison, bit for bit."""
        bits = self._bits.copy()
        self._layout.view(bits, *self._shape)[...] = POISON
        return bool((bits == POISON).all())
