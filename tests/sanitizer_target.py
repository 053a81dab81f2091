"""Multiplies with every version of the ladder; a program to run under compute-sanitizer.

``python sanitizer_target.py [KERNEL.cu]``: with a file, that kernel alone. CuPy's memory pool is
off, because inside a pool's block an access past the end of a matrix looks valid.
"""

import sys
from itertools import product

import cupy
import numpy as np

import sgemm
from sgemm.source import from_file

SHAPES = [(33, 33, 33), (128, 128, 128), (100, 129, 7), (100, 7, 129), (5, 3, 40)]  # M, K, N


def place(matrix: np.ndarray, offset: int) -> cupy.ndarray:
    """The matrix on the GPU, ``offset`` floats past an aligned address, its last float the last."""
    buffer = cupy.empty(offset + matrix.size, cupy.float32)
    view = buffer[offset:].reshape(matrix.shape)
    view.set(matrix)
    return view


def main() -> None:
    cupy.cuda.set_allocator(None)
    versions = [from_file(path) for path in sys.argv[1:]] or list(sgemm.LADDER.values())
    random = np.random.default_rng(0)
    for version, (m, k, n), offset in product(versions, SHAPES, (0, 1)):
        a, b = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        on_gpu = place(a, offset), place(np.ascontiguousarray(b), offset)
        for beta in (0.0, 1.0):
            out = place(np.ones((m, n), np.float32), offset)
            sgemm.matmul(*on_gpu, out=out, beta=beta, version=version)
            np.testing.assert_array_equal(out.get(), a @ b + beta)


if __name__ == "__main__":
    main()
