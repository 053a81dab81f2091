// C = beta * C, the whole product where alpha or K is 0: A and B are never read, and with beta 0
// neither is C, so that a NaN in any of them stays out of the result.
#include "portable.cuh"

// C is rows×cols with any strides, in floats; one thread per element.
extern "C" __global__ void __launch_bounds__(THREADS)
    scale(int rows, int cols, float beta, float* __restrict__ C, long long row_stride,
          long long col_stride) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= static_cast<long long>(rows) * cols) return;
    float* c = C + i / cols * row_stride + i % cols * col_stride;
    *c = beta == 0.0f ? 0.0f : beta * *c;
}
