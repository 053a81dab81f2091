"""Where the kernels' sources are."""

from functools import cache
from pathlib import Path


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
    headers beside it and the ladder's own."""
    path = kernel_path(source)
    headers = {
        header.name: header.read_text()
        for folder in {kernels_folder(): None, path.parent: None}
        for header in sorted(folder.glob("*.cuh"))
    }
    return {path.name: path.read_text(), **headers}
