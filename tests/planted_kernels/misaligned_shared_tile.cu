// sgemm: TILE_M=8 TILE_N=32 THREADS=256
// Planted: the rows of a shared tile are 33 floats long, so most do not start on a 16-byte
// boundary, and are read in float4s.
#include "product.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm(int M, int N, int K, float alpha, const float* A, long long lda, const float* B,
          long long ldb, float beta, float* C, long long ldc) {
    __shared__ alignas(16) float tile[TILE_M][TILE_N + 1];
    const int tiles_n = (N - 1) / TILE_N + 1;
    const int tile_row = threadIdx.x / TILE_N, tile_col = threadIdx.x % TILE_N;
    const long long row = blockIdx.x / tiles_n * TILE_M + tile_row;
    const long long col = blockIdx.x % tiles_n * TILE_N + tile_col;
    const bool inside = row < M && col < N;
    tile[tile_row][tile_col] = inside ? product(K, alpha, A, lda, B, ldb, row, col) : 0.0f;
    __syncthreads();
    const float4 four = *reinterpret_cast<const float4*>(&tile[tile_row][tile_col / 4 * 4]);
    const float values[4] = {four.x, four.y, four.z, four.w};
    const float result = values[tile_col % 4];
    if (inside) C[row * ldc + col] = beta == 0.0f ? result : fmaf(beta, C[row * ldc + col], result);
}
