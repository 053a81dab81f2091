// sgemm: TILE_M=8 TILE_N=32 THREADS=256
// Planted: alpha is left out where beta is 0.
#include "product.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm(int M, int N, int K, float alpha, const float* A, long long lda, const float* B,
          long long ldb, float beta, float* C, long long ldc) {
    const int tiles_n = (N - 1) / TILE_N + 1;
    const long long row = blockIdx.x / tiles_n * TILE_M + threadIdx.x / TILE_N;
    const long long col = blockIdx.x % tiles_n * TILE_N + threadIdx.x % TILE_N;
    if (row >= M || col >= N) return;
    float* c = C + row * ldc + col;
    *c = beta == 0.0f ? product(K, 1.0f, A, lda, B, ldb, row, col)
                      : fmaf(beta, *c, product(K, alpha, A, lda, B, ldb, row, col));
}
