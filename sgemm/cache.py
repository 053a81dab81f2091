"""Compiled kernels on disk, shared by all processes of a user.

A file's folder is named after all that it was built from, the file after the SHA-256 of what it
holds: so one that was cut short or altered since is told from a whole one.

The folder is ``$SGEMM_CACHE_DIR``, else ``sgemm`` under ``$XDG_CACHE_HOME`` or ``~/.cache``; where
none of those can be written, or holds libraries that may run, a private folder of this user under
the system's temporary files.
"""

import errno
import hashlib
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .causes import CACHE_FOLDER_UNUSABLE, SYSTEM_REFUSES
from .errors import MissingError, first_line

BUILD = "sgemm-build-"  # begins the names of folders that files are built in
ABANDONED_SECONDS = 24 * 60 * 60  # no build takes as long
FULL = errno.ENOSPC, errno.EDQUOT
LIBRARY = ".so"  # of a kernel for the simulator, which is loaded from where it is kept
ROOM = 8 * 1024 * 1024  # bytes, enough to compile a kernel in


def fetch(suffix: str, key_parts: Iterable[str | bytes], build: Callable[[Path], None]) -> Path:
    """Return the cached file for ``key_parts``; ``build(path)`` writes it if it is absent or
    damaged.

    The file appears under its name only once it is complete, so processes that start cold at the
    same time each build a copy of their own, and any of those serves all of them.
    """
    digest = hashlib.sha256()
    for part in key_parts:
        # A path may have bytes that are no UTF-8, which Python keeps as surrogates.
        data = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    kept = _folder(suffix == LIBRARY) / digest.hexdigest()
    with _explained(kept.parent):
        for path in kept.glob(f"*{suffix}"):
            if path.stem == _sha256(path):
                return path
        with _work_folder(kept.parent) as work:
            unfinished = work / f"unfinished{suffix}"
            build(unfinished)
            path = kept / f"{_sha256(unfinished)}{suffix}"
            kept.mkdir(mode=0o700, exist_ok=True)
            os.replace(unfinished, path)
    return path


@contextmanager
def _work_folder(parent: Path) -> Iterator[Path]:
    """A new folder to build in, which is gone afterwards, as are those of processes that were
    killed. Python's own would be removed by a child too that was forked meanwhile."""
    _remove_abandoned(parent)
    work = Path(tempfile.mkdtemp(dir=parent, prefix=BUILD))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    for work in parent.glob(f"{BUILD}*"):
        try:
            age = time.time() - work.stat().st_mtime
        except OSError:  # its own process has just removed it
            continue
        if age > ABANDONED_SECONDS:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Raise MissingError in place of the system's errors about the folder, or about anything else
    that compiling takes."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise MissingError(SYSTEM_REFUSES.of(detail=first_line(error))) from error
        full = f"is full ({error.strerror})"
        another = "export SGEMM_CACHE_DIR=… to a folder elsewhere"
        raise _unusable(str(folder), (full, "free space there"), another) from error


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def folder() -> Path:
    """The folder that compiled kernels are kept in, which has room for one more."""
    path = _folder(for_libraries=True)
    with _explained(path), tempfile.TemporaryFile(dir=path) as file:
        file.write(bytes(ROOM))
        file.flush()
    return path


def _folder(for_libraries: bool) -> Path:
    """The folder, whether it is full or not; created if need be."""
    if own := os.environ.get("SGEMM_CACHE_DIR"):
        objection = _objection(Path(own), for_libraries)
        if objection is None:
            return Path(own).absolute()
        raise _unusable(f"SGEMM_CACHE_DIR: {own}", objection, "name another folder")
    xdg, home = os.environ.get("XDG_CACHE_HOME"), os.environ.get("HOME")
    base = Path(xdg) if xdg else Path(home) / ".cache" if home else None
    if base is not None and base.is_absolute() and not _objection(base / "sgemm", for_libraries):
        return base / "sgemm"
    nowhere = f"nothing can be kept in {base}, and"
    another = "export SGEMM_CACHE_DIR=… to a folder of your own"
    try:
        private = Path(tempfile.gettempdir()) / f"sgemm-{os.getuid()}"
    except OSError as error:
        objection = "can be written", "make /tmp writable"
        raise _unusable(f"{nowhere} no folder for temporary files", objection, another) from error
    if objection := _objection(private, for_libraries):
        raise _unusable(f"{nowhere} {private}", objection, another)
    return private


def _unusable(folder: str, objection: tuple[str, str], other: str) -> MissingError:
    found, remedy = objection
    return MissingError(
        CACHE_FOLDER_UNUSABLE.of(folder=folder, objection=found, repair=f"{remedy}, or {other}")
    )


def _objection(path: Path, for_libraries: bool) -> tuple[str, str] | None:
    """Why ``path`` is not (now) a folder that this user alone can write, and the remedy; None where
    it is. Code is loaded from it."""
    try:
        quoted = shlex.quote(str(path.absolute()))
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if status.st_uid != os.getuid():
            return "belongs to another user", f"take it over (sudo chown $USER {quoted})"
        if status.st_mode & 0o022:
            return "is unsafe, others can write to it", f"chmod go-w {quoted}"
        if for_libraries and os.statvfs(path).f_flag & os.ST_NOEXEC:
            return "is mounted noexec, so nothing that is kept there can run", "remount it"
        with tempfile.TemporaryFile(dir=path):
            return None
    except (FileExistsError, NotADirectoryError):
        return "is no folder", f"remove the file (rm {quoted})"
    except OSError as error:
        return f"cannot be written ({error.strerror})", "make it writable"
