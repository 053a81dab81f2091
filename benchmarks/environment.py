"""What every figure travels with: the GPU, its driver and limits, and the libraries in use."""

import platform
import subprocess
import sys
from typing import Any

from .checkout import ROOT
from .cublas import MATH_MODE, Cublas
from .gpu import Gpu, Monitor
from .products import SEED


def describe(gpu: Gpu, monitor: Monitor, cublas: Cublas) -> dict[str, Any]:
    import cupy
    from cuda.bindings import nvrtc

    attributes = cupy.cuda.Device().attributes
    _, nvrtc_major, nvrtc_minor = nvrtc.nvrtcVersion()
    return {
        "checkout": commit_of_checkout(),
        "gpu": gpu.name,
        "compute_capability": "{}.{}".format(*gpu.compute_capability),
        "sms": attributes["MultiProcessorCount"],
        "l2_bytes": attributes["L2CacheSize"],
        "memory_bus_bits": attributes["GlobalMemoryBusWidth"],
        "cuda": gpu.cuda,
        **monitor.describe(),
        "nvrtc": f"{nvrtc_major}.{nvrtc_minor}",
        "cublas": cublas.version(),
        "cublas_math": MATH_MODE,
        "cupy": cupy.__version__,
        "python": platform.python_version(),
        "inputs": f"uniform in [-1, 1), seed {SEED}",
        "l2_state": "cold: operands rotate through sets that fill it",
    }


def commit_of_checkout() -> str | None:
    """The checkout's commit, with "-dirty" where files differ from it; None outside git, and with
    git's reason on standard error where git refuses to tell."""
    command = ("git", "-C", str(ROOT), "describe", "--always", "--abbrev=10", "--dirty")
    try:
        found = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    if found.returncode and (ROOT / ".git").exists():
        reason = " ".join(found.stderr.split())
        print(f"what is measured goes without its commit: {reason}", file=sys.stderr)
    return found.stdout.strip() or None
