// sgemm: TILE_M=8 TILE_N=32 THREADS=256
// Planted: a float is written behind the last one of A.
#include "product.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm(int M, int N, int K, float alpha, const float* A, long long lda, const float* B,
          long long ldb, float beta, float* C, long long ldc) {
    const int tiles_n = (N - 1) / TILE_N + 1;
    const long long row = blockIdx.x / tiles_n * TILE_M + threadIdx.x / TILE_N;
    const long long col = blockIdx.x % tiles_n * TILE_N + threadIdx.x % TILE_N;
    if (row >= M || col >= N) return;
    float* c = C + row * ldc + col;
    const float result = product(K, alpha, A, lda, B, ldb, row, col);
    *c = beta == 0.0f ? result : fmaf(beta, *c, result);
    if (row == 0 && col == 0) const_cast<float*>(A)[(M - 1) * lda + K] = 5.0f;
}
