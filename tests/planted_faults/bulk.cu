// sgemm: TILE_M=8 TILE_N=32 TILE_K=8 THREADS=256
// A right kernel that kernel_faults.py plants faults into, by replacing text: bulk copies, two
// buffers. It takes matrices of whole tiles and aligned rows only.
#include "portable.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm(int M, int N, int K, float alpha, const float* A, long long lda, const float* B,
          long long ldb, float beta, float* C, long long ldc) {
    __shared__ alignas(16) float a_tile[2][TILE_M][TILE_K];
    __shared__ alignas(16) float b_tile[2][TILE_K][TILE_N];
    __shared__ mbarrier_t full[2];
    const int row0 = blockIdx.x / (N / TILE_N) * TILE_M;
    const int col0 = blockIdx.x % (N / TILE_N) * TILE_N;
    const int row = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    if (threadIdx.x == 0)
        for (int i = 0; i < 2; ++i) mbarrier_init(&full[i], 1);
    __syncthreads(); // the mbarriers are there

    auto fill = [&](int buffer, int k0) {
        mbarrier_arrive_expect_tx(&full[buffer], (TILE_M + TILE_N) * TILE_K * 4);
        for (int i = 0; i < TILE_M; ++i)
            copy_bulk_async(a_tile[buffer][i], A + (row0 + i) * lda + k0, TILE_K * 4,
                            &full[buffer]);
        for (int i = 0; i < TILE_K; ++i)
            copy_bulk_async(b_tile[buffer][i], B + (k0 + i) * ldb + col0, TILE_N * 4,
                            &full[buffer]);
    };

    float sum = 0.0f;
    if (threadIdx.x == 0) fill(0, 0);
    for (int k0 = 0; k0 < K; k0 += TILE_K) {
        const int buffer = k0 / TILE_K % 2;
        if (threadIdx.x == 0 && k0 + TILE_K < K) fill(1 - buffer, k0 + TILE_K);
        mbarrier_wait(&full[buffer], k0 / TILE_K / 2 % 2);
        for (int k = 0; k < TILE_K; ++k)
            sum = fmaf(a_tile[buffer][row][k], b_tile[buffer][k][lane], sum);
        __syncthreads(); // nobody reads it any more
    }
    float* c = C + (row0 + row) * ldc + col0 + lane;
    *c = beta == 0.0f ? alpha * sum : fmaf(alpha, sum, beta * *c);
}
