"""Installs what measuring on a GPU takes into the Python that runs this: nothing where there is no
GPU, or where CuPy is there already."""

import importlib.util
import subprocess
import sys

from . import gpu

PACKAGES = ("cupy-cuda13x", "nvidia-cublas", "nvidia-cuda-runtime", "nvidia-ml-py")


def main() -> None:
    if gpu.find() is None or importlib.util.find_spec("cupy") is not None:
        return
    subprocess.run([sys.executable, "-P", "-m", "pip", "install", *PACKAGES], check=True)


if __name__ == "__main__":
    main()
