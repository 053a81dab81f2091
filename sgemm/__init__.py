"""Hand-written FP32 matrix multiplication: a ladder of CUDA kernels, called from Python.

``matmul`` multiplies CuPy arrays on their GPU and NumPy arrays in a simulator that runs the same
kernels on the CPU; ``prepare`` checks and plans a product once, to be launched many times.
``LADDER`` describes the kernels; ``compile`` compiles one without a GPU.
Importing the package loads no CUDA library and starts no driver.
"""

from typing import TYPE_CHECKING, Any

from .errors import (
    ArgumentError,
    ArgumentTypeError,
    CompileError,
    GpuUnusableError,
    KernelError,
    MissingError,
    OutOfMemoryError,
    SgemmError,
    SimulatorLimitError,
)
from .ladder import LADDER, Version

if TYPE_CHECKING:
    from .compiler import Compiled, compile
    from .multiply import Prepared, matmul, prepare

__all__ = [
    "LADDER",
    "ArgumentError",
    "ArgumentTypeError",
    "CompileError",
    "Compiled",
    "GpuUnusableError",
    "KernelError",
    "MissingError",
    "OutOfMemoryError",
    "Prepared",
    "SgemmError",
    "SimulatorLimitError",
    "Version",
    "compile",
    "matmul",
    "prepare",
]

_HOMES = {
    "Compiled": "compiler",
    "Prepared": "multiply",
    "compile": "compiler",
    "matmul": "multiply",
    "prepare": "multiply",
}


def __getattr__(name: str) -> Any:
    """Import NumPy and what builds on it at the first use: importing the package stays instant."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = found  # asked for once
    return found


def __dir__() -> list[str]:
    return __all__
