// sgemm: TILE_M=8 TILE_N=32 TILE_K=8 THREADS=288
// A right kernel that kernel_faults.py plants faults into, by replacing text: a warp that copies,
// eight that multiply, and mbarriers between them.
#include "portable.cuh"

#ifndef SGEMM_SIMULATOR // which has it
__device__ inline void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
#endif

constexpr int BUFFERS = 3;
constexpr int MULTIPLIERS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm(int M, int N, int K, float alpha, const float* A, long long lda, const float* B,
          long long ldb, float beta, float* C, long long ldc) {
    __shared__ alignas(16) float a_tile[BUFFERS][TILE_M][TILE_K];
    __shared__ alignas(16) float b_tile[BUFFERS][TILE_K][TILE_N];
    __shared__ mbarrier_t full[BUFFERS], empty[BUFFERS];
    const int tiles_n = (N - 1) / TILE_N + 1;
    const int row0 = blockIdx.x / tiles_n * TILE_M;
    const int col0 = blockIdx.x % tiles_n * TILE_N;
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x / 32;

    if (threadIdx.x == 0)
        for (int i = 0; i < BUFFERS; ++i) {
            mbarrier_init(&full[i], 32);
            mbarrier_init(&empty[i], MULTIPLIERS / 32);
        }
    __syncthreads(); // the mbarriers are there

    int buffer = 0;
    unsigned parity = 0;
    if (threadIdx.x >= MULTIPLIERS) {
        for (int k0 = 0; k0 < K; k0 += TILE_K) {
            mbarrier_wait(&empty[buffer], parity ^ 1);
            for (int i = lane; i < TILE_M * TILE_K; i += 32) {
                const int m = i / TILE_K, k = i % TILE_K;
                copy_async<1>(&a_tile[buffer][m][k], A + (row0 + m) * lda + k0 + k,
                              row0 + m < M && k0 + k < K);
            }
            for (int k = 0; k < TILE_K; ++k)
                copy_async<1>(&b_tile[buffer][k][lane], B + (k0 + k) * ldb + col0 + lane,
                              k0 + k < K && col0 + lane < N);
            copy_async_arrive(&full[buffer]);
            if (++buffer == BUFFERS) buffer = 0, parity ^= 1;
        }
        return;
    }
    float sum = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TILE_K) {
        mbarrier_wait(&full[buffer], parity);
        for (int k = 0; k < TILE_K; ++k)
            sum = fmaf(a_tile[buffer][row][k], b_tile[buffer][k][lane], sum);
        __syncwarp(); // the warp has read it
        if (lane == 0) mbarrier_arrive(&empty[buffer]);
        if (++buffer == BUFFERS) buffer = 0, parity ^= 1;
    }
    named_barrier_sync(1, MULTIPLIERS);
    if (row0 + row >= M || col0 + lane >= N) return;
    float* c = C + (row0 + row) * ldc + col0 + lane;
    *c = beta == 0.0f ? alpha * sum : fmaf(alpha, sum, beta * *c);
}
