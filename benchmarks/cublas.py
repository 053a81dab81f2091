"""cuBLAS FP32, the reference series: called directly, so that its math mode and its workspace are
known and its launches can be captured in a CUDA graph (CuPy refuses that)."""

import ctypes
import os
from typing import Any

MATH_MODE = "CUBLAS_DEFAULT_MATH, TF32 off"

_DEFAULT_MATH = 0
_OP_N, _OP_T = 0, 1
_WORKSPACE_BYTES = 32 << 20  # what NVIDIA recommends from Hopper on


class CublasError(RuntimeError):
    """cuBLAS answered with an error."""


class Cublas:
    """cuBLAS on the current device and one stream."""

    def __init__(self, stream: Any) -> None:
        import cupy
        from cuda.pathfinder import load_nvidia_dynamic_lib

        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # above whatever the environment says
        self._library = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
        self._handle = ctypes.c_void_p()
        self._workspace = cupy.empty(_WORKSPACE_BYTES, cupy.uint8)
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream.ptr))
        self._call(
            "cublasSetWorkspace_v2",
            self._handle,
            ctypes.c_void_p(self._workspace.data.ptr),
            ctypes.c_size_t(_WORKSPACE_BYTES),
        )
        self._call("cublasSetMathMode", self._handle, _DEFAULT_MATH)

    def version(self) -> str:
        number = ctypes.c_int()
        self._call("cublasGetVersion_v2", self._handle, ctypes.byref(number))
        major, rest = divmod(number.value, 10_000)
        return f"{major}.{rest // 100}.{rest % 100}"

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        """``out = a @ b``: a and out row-major, b row- or column-major, all without gaps.

        cuBLAS is column-major: it computes outᵀ = bᵀ aᵀ, and a row-major matrix is a transposed
        column-major one already.
        """
        (m, k), n = a.shape, b.shape[1]
        b_is_row_major = b.flags.c_contiguous
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        self._call(
            "cublasSgemm_v2",
            self._handle,
            _OP_N if b_is_row_major else _OP_T,
            _OP_N,
            n,
            m,
            k,
            ctypes.byref(one),
            ctypes.c_void_p(b.data.ptr),
            n if b_is_row_major else k,
            ctypes.c_void_p(a.data.ptr),
            k,
            ctypes.byref(zero),
            ctypes.c_void_p(out.data.ptr),
            n,
        )

    def _call(self, function: str, *args: Any) -> None:
        status = getattr(self._library, function)(*args)
        if status:
            raise CublasError(f"{function}: status {status}")
