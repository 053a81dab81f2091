"""Runs the kernels' CUDA sources on the CPU, with NumPy arrays' memory as global memory.

``simulator.h`` describes the model. It is a functional one: what a kernel computes, not how fast.
Within ``checked()`` it looks at every access to memory for what a kernel must not do, within
``counted()`` it counts them as the warps of a GPU would make them.
"""

from .build import find_compiler
from .counts import Counts
from .findings import Finding
from .launches import Operand, checked, counted, is_instrumented, launch, order
from .symbols import find_tools

__all__ = [
    "Counts",
    "Finding",
    "Operand",
    "checked",
    "counted",
    "find_compiler",
    "find_tools",
    "is_instrumented",
    "launch",
    "order",
]
