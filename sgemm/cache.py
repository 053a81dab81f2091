"""Compiled kernels on disk, shared by all processes of a user.

The folder is ``$SGEMM_CACHE_DIR``, else ``sgemm`` under ``$XDG_CACHE_HOME`` or ``~/.cache``; where
none of those can be written, a private folder of this user under the system's temporary files.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from .errors import MissingError


def fetch(suffix: str, key_parts: Iterable[str | bytes], build: Callable[[Path], None]) -> Path:
    """Return the cached file for ``key_parts``; ``build(path)`` writes it if it is absent.

    The file appears under its name only once it is complete, so processes that start cold at the
    same time each build their own copy and all end with the same one.
    """
    digest = hashlib.sha256()
    for part in key_parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    path = folder() / (digest.hexdigest() + suffix)
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as work:
            unfinished = Path(work) / path.name
            build(unfinished)
            os.replace(unfinished, path)
    return path


def folder() -> Path:
    """The folder that compiled kernels are kept in; created if need be."""
    return _folder(
        os.environ.get("SGEMM_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME"), os.environ.get("HOME")
    )


@cache
def _folder(own: str | None, xdg: str | None, home: str | None) -> Path:
    if own:
        path = Path(own).absolute()
        if not _usable(path):
            raise MissingError(
                f"SGEMM_CACHE_DIR: {path} cannot be written; name a folder that can, or unset it"
            )
        return path
    base = Path(xdg) if xdg else Path(home) / ".cache" if home else None
    if base is not None and base.is_absolute() and _usable(base / "sgemm"):
        return base / "sgemm"
    private = Path(tempfile.gettempdir()) / f"sgemm-{os.getuid()}"
    if not _usable(private):
        raise MissingError(
            f"no folder for compiled kernels: neither {base} nor {private} can be written; "
            "set SGEMM_CACHE_DIR to one that can"
        )
    return private


def _usable(path: Path) -> bool:
    """Whether ``path`` is (now) a folder that this user alone can write: code is loaded from it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        with tempfile.TemporaryFile(dir=path):
            return status.st_uid == os.getuid() and not status.st_mode & 0o022
    except OSError:
        return False
