// sgemm: TILE_M=8 TILE_N=32 TILE_K=8 THREADS=64 FLOAT4=1
// A right kernel that kernel_faults.py plants faults into, by replacing text: tiles in two
// buffers, filled by asynchronous copies; a thread computes a float4 of C.
#include "tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm(int M, int N, int K, float alpha, const float* A, long long lda, const float* B,
          long long ldb, float beta, float* C, long long ldc) {
    __shared__ alignas(16) float a_tile[2][TILE_M][TILE_K];
    __shared__ alignas(16) float b_tile[2][TILE_K][TILE_N];
    const int tiles_n = (N - 1) / TILE_N + 1;
    const int row0 = blockIdx.x / tiles_n * TILE_M;
    const int col0 = blockIdx.x % tiles_n * TILE_N;
    const int row = threadIdx.x / 8;
    const int col = threadIdx.x % 8 * 4;

    auto fill = [&](int buffer, int k0) {
        const int k = threadIdx.x % 8;
        copy_async<1>(&a_tile[buffer][row][k], A + (row0 + row) * lda + k0 + k,
                      row0 + row < M && k0 + k < K);
        const float* b = B + (k0 + row) * ldb + col0 + col;
        const int valid = k0 + row < K ? max(0, min(4, N - col0 - col)) : 0;
        if (VECTOR)
            copy_async<4>(&b_tile[buffer][row][col], b, valid);
        else
            for (int j = 0; j < 4; ++j)
                copy_async<1>(&b_tile[buffer][row][col + j], b + j, j < valid);
        copy_async_commit();
    };

    float4 sum = make_float4(0, 0, 0, 0);
    int buffer = 0;
    fill(0, 0);
    for (int k0 = 0; k0 < K; k0 += TILE_K) {
        copy_async_wait<0>();
        __syncthreads();
        if (k0 + TILE_K < K) fill(1 - buffer, k0 + TILE_K);
        for (int k = 0; k < TILE_K; ++k) {
            const float a = a_tile[buffer][row][k];
            const float4 b = *reinterpret_cast<float4*>(&b_tile[buffer][k][col]);
            sum.x = fmaf(a, b.x, sum.x);
            sum.y = fmaf(a, b.y, sum.y);
            sum.z = fmaf(a, b.z, sum.z);
            sum.w = fmaf(a, b.w, sum.w);
        }
        buffer = 1 - buffer;
    }

    const float result[4] = {sum.x, sum.y, sum.z, sum.w};
    for (int j = 0; j < 4; ++j) {
        if (row0 + row >= M || col0 + col + j >= N) continue;
        float* c = C + (row0 + row) * ldc + col0 + col + j;
        *c = beta == 0.0f ? alpha * result[j] : fmaf(alpha, result[j], beta * *c);
    }
}
