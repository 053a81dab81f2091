"""What compute-sanitizer watches.

``python sanitizer_target.py [KERNEL.cu ...]`` multiplies with every version of the ladder, or with
the kernels in these files. ``python sanitizer_target.py --planted NAME ...`` launches kernels with
these faults of ``kernel_faults.py``, each under a name of its own, which reports tell them by.

CuPy's memory pool is off, because inside a pool's block an access past the end of a matrix looks
valid.
"""

import re
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
from kernel_faults import planted

import sgemm
from sgemm.compiler import Compiled, compile_kernel
from sgemm.ladder import Version
from sgemm.source import from_file

SHAPES = [(33, 33, 33), (128, 128, 128), (100, 129, 7), (100, 7, 129), (5, 3, 40)]  # M, K, N
PLANTED_SHAPE = 20, 36, 72


def place(matrix, offset):
    """The matrix on the GPU, ``offset`` floats past an aligned address, its last float the last."""
    import cupy

    buffer = cupy.empty(offset + matrix.size, cupy.float32)
    view = buffer[offset:].reshape(matrix.shape)
    view.set(matrix)
    return view


def multiply(versions):
    random = np.random.default_rng(0)
    for version, (m, k, n), offset in product(versions, SHAPES, (0, 1)):
        a, b = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        on_gpu = place(a, offset), place(np.ascontiguousarray(b), offset)
        for beta in (0.0, 1.0):
            out = place(np.ones((m, n), np.float32), offset)
            sgemm.matmul(*on_gpu, out=out, beta=beta, version=version)
            np.testing.assert_array_equal(out.get(), a @ b + beta)


def function_name(fault):
    """What the kernel with a fault is called."""
    return "kernel_that_" + re.sub(r"\W+", "_", fault)


def compile_planted(fault, arch) -> tuple[Version, Compiled]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "planted.cu")
        source.write_text(planted(fault, function_name(fault)))
        version = from_file(source)
        return version, compile_kernel(str(source), version.defines(True), arch)


def launch(fault):
    import cupy

    m, k, n = PLANTED_SHAPE
    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    version, compiled = compile_planted(fault, arch)
    module = cupy.cuda.function.Module()
    module.load(compiled.cubin)
    a, b = (place(np.ones(shape, np.float32), 0) for shape in ((m, k), (k, n)))
    c = cupy.empty((m, n), np.float32)
    sizes = map(np.int32, (m, n, k))
    operands = np.float32(1), a, np.int64(k), b, np.int64(n), np.float32(0), c, np.int64(n)
    blocks = version.tiles(m, n)
    failed = cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError
    try:
        function = module.get_function(function_name(fault))
        function((blocks,), (version.threads,), (*sizes, *operands))
        cupy.cuda.runtime.deviceSynchronize()
    except failed as error:  # the kernel was stopped
        print(f"{fault}: {error}")


def main(*arguments):
    import cupy

    cupy.cuda.set_allocator(None)
    if arguments[:1] == ("--planted",):
        for fault in arguments[1:]:
            launch(fault)
    else:
        multiply([from_file(path) for path in arguments] or list(sgemm.LADDER.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
