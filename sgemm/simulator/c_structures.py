"""The structures that runtime.h shares with Python."""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char, c_char_p, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..causes import LIBRARY_NOT_LOADED
from ..errors import MissingError, first_line

if TYPE_CHECKING:
    from .launches import Operand

SPACES = 4  # global loads and stores, shared loads and stores


class COperand(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p),
        ("base", c_void_p),
        ("rows", c_int64),
        ("cols", c_int64),
        ("row_stride", c_int64),
        ("col_stride", c_int64),
        ("initialised", c_int64),
        ("scratch", c_int64),
    )


class CSharedArray(ctypes.Structure):
    _fields_ = (("name", c_char_p), ("offset", c_int64), ("bytes", c_int64))


class CLaunch(ctypes.Structure):
    _fields_ = (
        ("grid", c_uint32),
        ("threads", c_uint32),
        ("seed", c_uint64),
        ("arguments", c_char_p),
        ("argument_bytes", c_uint64),
        ("stacks", c_void_p),
        ("mode", c_uint32),
        ("tile_rows", c_uint32),
        ("tile_cols", c_uint32),
        ("operand_count", c_uint32),
        ("operands", POINTER(COperand)),
        ("shared_arrays", POINTER(CSharedArray)),
        ("shared_array_count", c_uint64),
    )


class CFinding(ctypes.Structure):
    _fields_ = (
        ("kind", c_char_p),
        ("text", c_char * 512),
        ("file", c_char * 256),
        ("line", c_int64),
        ("pc", c_uint64),
        ("other_pc", c_uint64),
        ("address", c_uint64),
        ("block", c_int64),
        ("thread", c_int64),
        ("times", c_int64),
    )


class CCount(ctypes.Structure):
    _fields_ = (
        ("pc", c_uint64),
        ("requests", c_uint64 * SPACES),
        ("floats", c_uint64 * SPACES),
        ("units", c_uint64 * SPACES),
        ("ideal", c_uint64 * SPACES),
        ("copies", c_uint64),
        ("barriers", c_uint64),
        ("fmas", c_uint64),
    )


def load(path: Path) -> ctypes.CDLL:
    """The library at ``path``, with the types of its functions; MissingError where the system does
    not load it."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise MissingError(LIBRARY_NOT_LOADED.of(detail=first_line(error))) from error
    library.simulator_signature.restype = c_char_p
    library.simulator_new_stacks.restype = c_void_p
    library.simulator_launch.restype = c_char_p
    library.simulator_launch.argtypes = [POINTER(CLaunch)]
    for function, structure in (("findings", CFinding), ("counts", CCount)):
        getattr(library, f"simulator_{function}").restype = POINTER(structure)
        getattr(library, f"simulator_{function}").argtypes = [POINTER(c_uint64)]
    return library


def items(function: Any) -> list[Any]:
    """What ``simulator_findings`` or ``simulator_counts`` has, valid until the next launch."""
    count = c_uint64()
    first = function(ctypes.byref(count))
    return [first[i] for i in range(count.value)]


def launch(
    grid: int,
    threads: int,
    seed: int,
    arguments: bytes,
    stacks: int,
    mode: int,
    tile: tuple[int, int],
    operands: Sequence["Operand"],
    shared_arrays: "ctypes.Array[CSharedArray] | None",
) -> CLaunch:
    """The request that ``simulator_launch`` takes."""
    matrices = (COperand * len(operands))(
        *(
            COperand(
                matrix.name.encode(),
                matrix.address,
                matrix.rows,
                matrix.cols,
                matrix.row_stride,
                matrix.col_stride,
                matrix.initialised,
                matrix.scratch,
            )
            for matrix in operands
        )
    )
    return CLaunch(
        grid,
        threads,
        seed,
        arguments,
        len(arguments),
        stacks,
        mode,
        *tile,
        len(operands),
        matrices,
        shared_arrays,
        len(shared_arrays) if shared_arrays is not None else 0,
    )
