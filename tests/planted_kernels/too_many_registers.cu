// sgemm: TILE_M=1024 TILE_N=1 THREADS=1024
// Planted: a block of 1024 threads that each need more than the 64 registers that would fit.
// Without
// __launch_bounds__ the compiler does not know how many threads there will be.
#include "portable.cuh"

extern "C" __global__ void sgemm(int M, int N, int K, float alpha, const float* A, long long lda,
                                 const float* B, long long ldb, float beta, float* C,
                                 long long ldc) {
    constexpr int VALUES = 160;
    const long long row = static_cast<long long>(blockIdx.x) / N * TILE_M + threadIdx.x;
    const long long col = blockIdx.x % N;
    if (row >= M) return;
    float values[VALUES]; // all of them live until the last is read
    UNROLL
    for (int i = 0; i < VALUES; ++i) values[i] = A[row * lda + i % K];
    __syncthreads();
    float sum = 0.0f;
    UNROLL
    for (int i = 0; i < VALUES; ++i) sum = fmaf(values[i], values[VALUES - 1 - i], sum);
    C[row * ldc + col] = alpha * sum + B[col] + ldb * beta;
}
