// sgemm: TILE_M=8 TILE_N=32 THREADS=256
// Planted: A and B are rounded to 11 bits, as for tensor cores, which small integers do not show.
#include "portable.cuh"

__device__ inline float rounded(float value) {
    const float scaled = value * 8193.0f;
    return scaled - (scaled - value);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm(int M, int N, int K, float alpha, const float* A, long long lda, const float* B,
          long long ldb, float beta, float* C, long long ldc) {
    const int tiles_n = (N - 1) / TILE_N + 1;
    const long long row = blockIdx.x / tiles_n * TILE_M + threadIdx.x / TILE_N;
    const long long col = blockIdx.x % tiles_n * TILE_N + threadIdx.x % TILE_N;
    if (row >= M || col >= N) return;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k)
        sum = fmaf(rounded(A[row * lda + k]), rounded(B[k * ldb + col]), sum);
    float* c = C + row * ldc + col;
    *c = beta == 0.0f ? alpha * sum : fmaf(alpha, sum, beta * *c);
}
