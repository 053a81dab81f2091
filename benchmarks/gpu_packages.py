"""Installs what measuring on a GPU takes into the Python that runs this: nothing where there is no
GPU, or where CuPy is there already.

The driver decides for which CUDA: one for CUDA 12 does not run what CUDA 13 compiles.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

from . import gpu

PACKAGES = {
    12: (
        "cupy-cuda12x",
        "cuda-bindings<13",  # loads the NVRTC of its own CUDA major
        "nvidia-cuda-nvrtc-cu12",
        "nvidia-cublas-cu12",
        "nvidia-cuda-runtime-cu12",
        "nvidia-ml-py",
    ),
    13: ("cupy-cuda13x", "nvidia-cublas", "nvidia-cuda-runtime", "nvidia-ml-py"),
}
"""CUDA major to what is needed beside the packages that a machine without a GPU has too."""

CONSTRAINTS = {12: "constraints-cuda12.txt", 13: "constraints.txt"}
"""CUDA major to the file that pins versions for it."""


class DriverTooOldError(RuntimeError):
    """The driver is older than any CUDA that is supported here."""


def cuda_major(device: gpu.Gpu | None) -> int:
    """The CUDA major to install for: the newest that the GPU's driver runs, and without a GPU the
    newest of all. Raises DriverTooOldError."""
    if device is None:
        return max(PACKAGES)
    supported = int(device.cuda.split(".")[0])
    if supported < min(PACKAGES):
        raise DriverTooOldError(
            f"the driver of {device.name} is for CUDA up to {device.cuda}, and {min(PACKAGES)}.0 "
            "is needed: update the driver to 525.60.13 or later, or do without the GPU: export "
            "CUDA_VISIBLE_DEVICES=-1"
        )
    return min(supported, max(PACKAGES))


def packages(device: gpu.Gpu | None) -> tuple[str, ...]:
    """What to install for that GPU; nothing without one. Raises DriverTooOldError."""
    return () if device is None else PACKAGES[cuda_major(device)]


def constraints(device: gpu.Gpu | None) -> Path:
    """The file that pins versions for that GPU, or for a machine without one."""
    return Path(CONSTRAINTS[cuda_major(device)])


def main() -> None:
    needed = packages(gpu.find())
    if needed and importlib.util.find_spec("cupy") is None:
        subprocess.run([sys.executable, "-P", "-m", "pip", "install", *needed], check=True)


if __name__ == "__main__":
    main()
