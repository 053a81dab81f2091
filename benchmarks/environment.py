"""What every figure travels with: the GPU, its driver and limits, and the libraries in use."""

import platform
from typing import Any

from .cublas import MATH_MODE, Cublas
from .gpu import Gpu, Monitor
from .products import SEED


def describe(gpu: Gpu, monitor: Monitor, cublas: Cublas) -> dict[str, Any]:
    import cupy
    from cuda.bindings import nvrtc

    attributes = cupy.cuda.Device().attributes
    _, nvrtc_major, nvrtc_minor = nvrtc.nvrtcVersion()
    return {
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
