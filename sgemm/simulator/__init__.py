"""Runs the kernels' CUDA sources on the CPU, with NumPy arrays' memory as global memory.

``simulator.h`` describes the model. It is a functional one: what a kernel computes, not how fast.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import Lock

import numpy as np

from ..errors import ArgumentError, KernelError
from .build import build as build_library
from .build import find_compiler

__all__ = ["find_compiler", "launch", "order"]

MAX_BLOCKS = 2**31 - 1
MAX_THREADS = 1024  # of a block

# The C++ types of parameters, by the letters that simulator.h and ctypes have for them.
_TYPES = {"i": "int", "q": "long long", "f": "float", "d": "double", "P": "pointer", "?": "other"}
_LETTERS = {
    np.dtype(np.int32): "i",
    np.dtype(np.int64): "q",
    np.dtype(np.float32): "f",
    np.dtype(np.uintp): "P",
}

_seed: ContextVar[int] = ContextVar("seed", default=0)


@contextmanager
def order(seed: int) -> Iterator[None]:
    """Draw the order of blocks and threads from ``seed``, any integer, within the context.

    Outside of it the seed is 0. The setting is the current thread's (or asyncio task's) own.
    """
    token = _seed.set(seed)
    try:
        yield
    finally:
        _seed.reset(token)


def launch(
    source: Path,
    entry: str,
    defines: Mapping[str, int],
    grid: int,
    threads: int,
    args: Sequence[np.generic],
) -> None:
    """Run the kernel ``entry`` of the file ``source``, compiled with the macros ``defines``.

    ``grid`` blocks of ``threads`` threads, both one-dimensional. ``args`` are its arguments: int32,
    int64 and float32 scalars, and addresses as uintp; the memory that they point to is the
    caller's to keep alive and large enough.

    Raises MissingError where there is no C++ compiler, CompileError with the compiler's messages
    for a source that does not compile, ArgumentError for arguments or a block that the kernel
    cannot take, and KernelError for a kernel that fails while it runs, with the place in its
    source where that is known, the block and the thread. After an error the memory holds whatever
    the kernel has written so far.
    """
    library = _load(build_library(source, entry, defines))
    if not 1 <= grid <= MAX_BLOCKS:
        raise ArgumentError(f"grid: {grid}; a grid has 1 to {MAX_BLOCKS} blocks")
    if not 1 <= threads <= MAX_THREADS:
        raise ArgumentError(f"threads: {threads}; a block has 1 to {MAX_THREADS} threads")
    library.launch(grid, threads, _seed.get(), args)


class _Library:
    """A compiled kernel. It runs one launch at a time: the launch's state is the library's own."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        signature = library.simulator_signature
        signature.restype = ctypes.c_char_p
        self._signature: str = signature().decode()
        self._launch = library.simulator_launch
        self._launch.restype = ctypes.c_char_p
        self._launch.argtypes = [ctypes.c_uint, ctypes.c_uint, ctypes.c_uint64, ctypes.c_char_p]
        self._lock = Lock()

    def launch(self, grid: int, threads: int, seed: int, args: Sequence[np.generic]) -> None:
        found = "".join(_LETTERS.get(arg.dtype, "?") for arg in args)
        if found != self._signature:
            raise ArgumentError(
                f"args: the kernel takes ({_names(self._signature)}), not ({_names(found)})"
            )
        slots = b"".join(arg.tobytes().ljust(8, b"\0") for arg in args)
        with self._lock:
            failure = self._launch(grid, threads, seed % 2**64, slots)
        if failure is not None:
            raise KernelError(failure.decode(errors="replace"))


def _names(signature: str) -> str:
    return ", ".join(_TYPES[letter] for letter in signature)


_libraries: dict[Path, _Library] = {}
_loading = Lock()


def _load(path: Path) -> _Library:
    with _loading:
        if path not in _libraries:
            _libraries[path] = _Library(path)
        return _libraries[path]
