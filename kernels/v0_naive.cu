// v0: one thread per output, B column-major.
//
// What: every thread walks one row of A and one column of B and accumulates one dot product.
// Why it is slow: neighbouring threads of a warp own neighbouring columns, and B is stored column
// after column, so at each step the 32 threads read 32 addresses that lie ldb floats apart. The
// memory system moves 32 sectors of 32 bytes and the warp uses 4 bytes of each.
#include "portable.cuh"

static_assert(TILE_M * TILE_N == THREADS, "v0 and v1 compute one output per thread");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");

// C = alpha * A @ B + beta * C: A is M×K row-major, B is K×N column-major, C is M×N row-major;
// the leading dimensions lda, ldb, ldc are in floats. One block computes a TILE_M×TILE_N tile of C.
extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm(int M, int N, int K, float alpha, const float* __restrict__ A, long long lda,
          const float* __restrict__ B, long long ldb, float beta, float* __restrict__ C,
          long long ldc) {
    const int tiles_n = (N - 1) / TILE_N + 1;
    const int row_in_tile = threadIdx.x / TILE_N;
    const int col_in_tile = threadIdx.x % TILE_N;
    const long long row = static_cast<long long>(blockIdx.x / tiles_n) * TILE_M + row_in_tile;
    const long long col = static_cast<long long>(blockIdx.x % tiles_n) * TILE_N + col_in_tile;
    if (row >= M || col >= N) return;

    const float* a = A + row * lda;
    const float* b = B + col * ldb;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) sum = fmaf(a[k], b[k], sum);

    float* c = C + row * ldc + col;
    *c = beta == 0.0f ? alpha * sum : fmaf(alpha, sum, beta * *c); // beta 0 never reads C
}
