// v1: B row-major, so that a warp's loads of B coalesce.
//
// What changes from v0: only the layout of B, B[k * ldb + col] instead of B[col * ldb + k].
// Why: the 32 threads of a warp now read 32 consecutive floats of B, 4 full sectors instead of
// 32 that are used to an eighth. A's element is the same for the whole warp: one broadcast.
#include "portable.cuh"

static_assert(TILE_M * TILE_N == THREADS, "v0 and v1 compute one output per thread");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");

// C = alpha * A @ B + beta * C: A is M×K, B is K×N, C is M×N, all row-major; the leading
// dimensions lda, ldb, ldc are in floats. One block computes a TILE_M×TILE_N tile of C.
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
    const float* b = B + col;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) sum = fmaf(a[k], b[k * ldb], sum);

    float* c = C + row * ldc + col;
    *c = beta == 0.0f ? alpha * sum : fmaf(alpha, sum, beta * *c); // beta 0 never reads C
}
