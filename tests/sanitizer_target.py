"""What compute-sanitizer watches.

``python sanitizer_target.py [KERNEL.cu ...]`` multiplies with every version of the ladder, or with
the kernels in these files; before each, its name is printed, as all kernels have one name in the
reports. ``python sanitizer_target.py --planted NAME ...`` launches kernels with these faults of
``kernel_faults.py``, each under a name of its own, which reports tell them by.

Where one lane arrives at an mbarrier for its whole warp, after a __syncwarp, racecheck (of CUDA
13.0) reports what the other lanes have read as races: that __syncwarp is no order to it. So with
``--every-thread-arrives``, and for planted faults always, every thread arrives for itself.

CuPy's memory pool is off, because inside a pool's block an access past the end of a matrix looks
valid.
"""

import argparse
import re
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from kernel_faults import planted

import sgemm
from sgemm.compiler import Compiled, compile_kernel
from sgemm.kernel_files import kernel_path, read
from sgemm.ladder import Version
from sgemm.source import from_file

# M, K, N; by the last one blocks of v7 and v8 add up parts of parts.
SHAPES = [(33, 33, 33), (128, 128, 128), (100, 129, 7), (100, 7, 129), (5, 3, 40), (8, 2048, 8)]
PLANTED_SHAPE = 20, 36, 72

FOR_ITS_WARP = (
    (r"if \((?:threadIdx\.x % 32|lane) == 0\) (mbarrier_arrive\()", r"\1"),
    (r"(mbarrier_init\(&empty\[\w+\], MULTIPLIERS) / 32\)", r"\1)"),
)
"""Where a kernel says that one lane arrives for its warp, and what says that every thread does."""


def every_thread_arrives(text):
    """A kernel's text, or what it is where every thread arrives at its mbarriers."""
    if "mbarrier_arrive(" not in text:
        return text
    for pattern, replacement in FOR_ITS_WARP:
        text, places = re.subn(pattern, replacement, text)
        if places != 1:
            raise ValueError(f"a kernel with mbarriers has {places} places like {pattern}, not 1")
    return text


def where_every_thread_arrives(version, folder) -> Version:
    """The version, or one of a kernel in the folder, in which every thread arrives."""
    source = kernel_path(version.source)
    text = read(source)
    if (changed := every_thread_arrives(text)) == text:
        return version
    kernel = Path(folder, source.name)
    kernel.write_text(changed, encoding="utf-8")
    return replace(version, source=str(kernel))


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
        print(version.name, (m, n, k), flush=True)
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
        source.write_text(every_thread_arrives(planted(fault, function_name(fault))))
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kernels", nargs="*")
    parser.add_argument("--every-thread-arrives", action="store_true")
    parser.add_argument("--planted", nargs="+", default=[])
    options = parser.parse_args()
    import cupy

    cupy.cuda.set_allocator(None)
    for fault in options.planted:
        launch(fault)
    if options.planted:
        return
    versions = [from_file(path) for path in options.kernels] or list(sgemm.LADDER.values())
    with tempfile.TemporaryDirectory() as folder:
        if options.every_thread_arrives:
            versions = [where_every_thread_arrives(version, folder) for version in versions]
        multiply(versions)


if __name__ == "__main__":
    main()
