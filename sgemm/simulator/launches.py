"""Compiles a kernel at its first launch, and launches it: to compute, to check or to count."""

import ctypes
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from ..errors import ArgumentError, KernelError, MissingError
from ..kernel_files import kernels_folder
from . import c_structures as c
from .build import HEADER, build
from .counts import Counts, read_counts
from .findings import Finding, read_findings
from .symbols import shared_arrays

MAX_BLOCKS = 2**31 - 1
MAX_THREADS = 1024  # of a block
# Where a compiler is looked for and libraries are kept.
_VARIABLES = ("CXX", "PATH", "SGEMM_CACHE_DIR", "XDG_CACHE_HOME", "HOME")
FRESH_SECONDS = 0.1  # a file may change within that time without another time stamp

# The C++ types of parameters, by the letters that simulator.h and ctypes have for them.
_TYPES = {"i": "int", "q": "long long", "f": "float", "d": "double", "P": "pointer", "?": "other"}
_LETTERS = {
    np.dtype(np.int32): "i",
    np.dtype(np.int64): "q",
    np.dtype(np.float32): "f",
    np.dtype(np.uintp): "P",
}


@dataclass(frozen=True)
class Operand:
    """A matrix that a launch uses, its strides in floats; ``initialised`` says whether it may be
    read before it is written, ``scratch`` whether any block may write all of it."""

    name: str
    address: int
    rows: int
    cols: int
    row_stride: int
    col_stride: int
    initialised: bool = True
    scratch: bool = False


@dataclass(frozen=True)
class Mode:
    """What launches are for: ``number`` is the runtime's, ``seen`` collects what they tell. With
    ``unrolled`` loops kernels are compiled as for a GPU."""

    number: int
    unrolled: bool = False
    seen: list[Any] = field(default_factory=list)


_RUN, _CHECK, _COUNT = 0, 1, 2

_seed: ContextVar[int] = ContextVar("seed", default=0)
_RUNNING = Mode(_RUN)
_mode: ContextVar[Mode] = ContextVar("mode", default=_RUNNING)


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


@contextmanager
def checked() -> Iterator[list[Finding]]:
    """Check every access to memory of the launches within the context; yields their findings.

    A launch that has findings raises a KernelError with the first of them when it ends.
    """
    with _in_mode(_CHECK) as findings:
        yield findings


@contextmanager
def counted(unrolled: bool = False) -> Iterator[list[Counts]]:
    """Count what the launches within the context ask of memory; yields the counts of each.

    Counting runs the threads in their order, whatever the seed. The n-th access of each of a warp's
    threads at one place in the code counts as one request. Where some threads skip an access in a
    loop, those requests are a GPU's only if the loop is ``unrolled``, which takes seconds to
    compile.
    """
    with _in_mode(_COUNT, unrolled) as counts:
        yield counts


@contextmanager
def _in_mode(number: int, unrolled: bool = False) -> Iterator[list[Any]]:
    mode = Mode(number, unrolled)
    token = _mode.set(mode)
    try:
        yield mode.seen
    finally:
        _mode.reset(token)


def is_instrumented() -> bool:
    """Whether launches here are checked or counted, and need to know their operands."""
    return _mode.get().number != _RUN


def launch(
    source: Path,
    entry: str,
    defines: Mapping[str, int],
    grid: int,
    threads: int,
    args: Sequence[np.generic],
    operands: Sequence[Operand] = (),
    tile: tuple[int, int] = (0, 0),
) -> None:
    """Run the kernel ``entry`` of the file ``source``, compiled with the macros ``defines``.

    ``grid`` blocks of ``threads`` threads, both one-dimensional. ``args`` are its arguments: int32,
    int64 and float32 scalars, and addresses as uintp; the memory that they point to is the
    caller's to keep alive and large enough. Within ``checked()``, ``operands`` are the matrices
    that the kernel may use, the last of them its result, the only one that it may write beside
    scratch; a block
    may write one tile of ``tile`` rows and columns of it, or anything where that is 0.

    Raises MissingError where there is no C++ compiler, CompileError with the compiler's messages
    for a source that does not compile, ArgumentError for arguments or a block that the kernel
    cannot take, and KernelError for a kernel that fails while it runs, with the place in its
    source where that is known, the block and the thread. After an error the memory holds whatever
    the kernel has written so far.
    """
    mode = _mode.get()
    if mode.unrolled:
        defines = {**defines, "UNROLL_LOOPS": 1}
    library = _load(source, entry, defines, mode.number != _RUN)
    if not 1 <= grid <= MAX_BLOCKS:
        raise ArgumentError(f"grid: {grid}; a grid has 1 to {MAX_BLOCKS} blocks")
    if not 1 <= threads <= MAX_THREADS:
        raise ArgumentError(f"threads: {threads}; a block has 1 to {MAX_THREADS} threads")
    if mode.number == _CHECK and not operands:
        raise ArgumentError("operands: a checked launch needs the matrices that it may use")
    library.launch(mode, grid, threads, args, operands, tile)


class _Library:
    """A compiled kernel. It runs one launch at a time: the launch's state is the library's own."""

    def __init__(self, path: Path, kernel: str, entry: str) -> None:
        self._path, self._kernel, self._entry = path, kernel, entry
        self._library = c.load(path)
        self._signature: str = self._library.simulator_signature().decode()
        self.lock = RLock()  # a signal's handler may fork within a launch
        self._shared_arrays: Any = None

    def launch(
        self,
        mode: Mode,
        grid: int,
        threads: int,
        args: Sequence[np.generic],
        operands: Sequence[Operand],
        tile: tuple[int, int],
    ) -> None:
        found = "".join(_LETTERS.get(arg.dtype, "?") for arg in args)
        if found != self._signature:
            raise ArgumentError(
                f"args: the kernel takes ({_names(self._signature)}), not ({_names(found)})"
            )
        slots = b"".join(arg.tobytes().ljust(8, b"\0") for arg in args)
        with self.lock, _stacks(self._library) as stacks:
            if mode.number != _RUN and self._shared_arrays is None:
                self._shared_arrays = shared_arrays(self._path)
            request = c.launch(
                grid, threads, _seed.get() % 2**64, slots, stacks, mode.number, tile, operands,
                self._shared_arrays,
            )  # fmt: skip
            failure = self._library.simulator_launch(ctypes.byref(request))
            if mode.number == _CHECK:
                findings = read_findings(self._library, self._path, self._kernel)
            elif mode.number == _COUNT:
                mode.seen.append(read_counts(self._library, self._path, self._kernel, self._entry))
        if mode.number == _CHECK and findings:
            mode.seen.extend(findings)
            raise KernelError(str(findings[0]))
        if failure is not None:
            raise KernelError(failure.decode(errors="replace"))


def _names(signature: str) -> str:
    return ", ".join(_TYPES[letter] for letter in signature)


# Memory for the stacks of a block's threads; any library may use it, one launch at a time.
_free_stacks: list[int] = []


@contextmanager
def _stacks(library: ctypes.CDLL) -> Iterator[int]:
    try:
        stacks = _free_stacks.pop()
    except IndexError:
        stacks = library.simulator_new_stacks()
    if not stacks:
        raise MissingError("there is no memory left for the stacks of the simulator's threads")
    try:
        yield stacks
    finally:
        _free_stacks.append(stacks)


# Libraries by their files, and by what they were built from.
_libraries: dict[Path, _Library] = {}
_built: dict[tuple[Any, ...], tuple[tuple[Any, ...], _Library]] = {}
_loading = RLock()
_held: list[Any] = []  # the locks that a fork holds


def _before_fork() -> None:
    """Wait until nothing is loaded or launched: the child would have a library, or the system's
    loader with its lock, as another thread has left it midway."""
    _hold(_loading)  # first: now no launch begins, and no library is added
    for library in _libraries.values():
        _hold(library.lock)


def _hold(lock: Any) -> None:
    lock.acquire()
    _held.append(lock)


def _after_fork() -> None:
    held = _held[::-1]
    _held.clear()  # before another thread that forks may go on
    for lock in held:
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )


def _load(source: Path, entry: str, defines: Mapping[str, int], checked: bool) -> _Library:
    """The kernel's library: that of the last launch, unless a file or the compiler has changed."""
    key = (source, entry, tuple(defines.items()), checked)
    stamps = _stamps(source)
    with _loading:
        if stamps and key in _built and _built[key][0] == stamps:
            return _built[key][1]
    path = build(source, entry, defines, checked)
    with _loading:
        if path not in _libraries:
            _libraries[path] = _Library(path, source.name, entry)
        if stamps:
            _built[key] = stamps, _libraries[path]
        return _libraries[path]


def _stamps(source: Path) -> tuple[Any, ...]:
    """What tells that a kernel must be built again; empty if a change could pass unnoticed."""
    files = [source, HEADER]
    for folder in {kernels_folder(), source.absolute().parent}:
        try:
            files += (entry for entry in sorted(folder.iterdir()) if entry.suffix == ".cuh")
        except OSError:
            return ()
    stamps: list[tuple[Any, ...]] = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            stamps.append((str(file),))
            continue
        if abs(time.time() - status.st_ctime) < FRESH_SECONDS:
            return ()
        stamps.append((str(file), status.st_ino, status.st_size, status.st_ctime_ns))
    return tuple(map(os.environ.get, _VARIABLES)), tuple(stamps)
