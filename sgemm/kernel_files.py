"""Where the kernels' sources are."""

from functools import cache
from pathlib import Path

from .errors import ArgumentError


@cache
def kernels_folder() -> Path:
    """``kernels/`` inside the package (a wheel), else beside it (a checkout)."""
    package = Path(__file__).resolve().parent
    inside = package / "kernels"
    return inside if inside.is_dir() else package.parent / "kernels"


def kernel_path(source: str) -> Path:
    """The path of a kernel file: a name in the kernels' folder, or somebody's own absolute path."""
    return kernels_folder() / source


def sources(source: str) -> dict[str, str]:
    """All that compiling ``source`` may read: file name to text, the kernel itself first, then the
    headers beside it and the ladder's own. ArgumentError names a file that cannot be read."""
    path = kernel_path(source)
    headers = {
        header.name: read(header)
        for folder in {kernels_folder(): None, path.parent: None}
        for header in sorted(folder.glob("*.cuh"))
        if header.is_file()  # an editor's lock is a link to nowhere
    }
    return {path.name: read(path), **headers}


def read(path: Path) -> str:
    """The text of a source file, which is UTF-8, without the mark that some editors begin it with.

    Raises ArgumentError, naming the file, where it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path}: cannot be read: {error}") from error
