// v2: tiles in shared memory, copied float4 by float4.
//
// What changes from v1: A and B are read from global memory once per block instead of once per
// thread. A block copies a TILE_M×TILE_K tile of A and a TILE_K×TILE_N tile of B into shared
// memory, and every element is then used TILE_N or TILE_M times from there.
// Why: v1 issues two global loads for every FMA. Here global traffic falls by the width of the
// tile, and a float4 moves four floats with one instruction, LDG.128.
#include "tile.cuh"

static_assert(TILE_M * TILE_N == THREADS, "v2 computes one output per thread");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(TILE_K % 4 == 0, "TILE_K must be a multiple of 4: A is copied in float4s along k");
static_assert(TILE_N % 4 == 0, "TILE_N must be a multiple of 4: B is copied in float4s along n");
static_assert((TILE_M + TILE_N) * TILE_K * 4 <= 48 * 1024,
              "both tiles must fit the 48 KiB of static shared memory");

// C = alpha * A @ B + beta * C: A is M×K, B is K×N, C is M×N, all row-major; the leading
// dimensions lda, ldb, ldc are in floats. One block computes a TILE_M×TILE_N tile of C.
extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm(int M, int N, int K, float alpha, const float* __restrict__ A, long long lda,
          const float* __restrict__ B, long long ldb, float beta, float* __restrict__ C,
          long long ldc) {
    __shared__ alignas(16) float a_tile[TILE_M][TILE_K];
    __shared__ alignas(16) float b_tile[TILE_K][TILE_N];

    const int tiles_n = (N - 1) / TILE_N + 1;
    const long long row0 = static_cast<long long>(blockIdx.x / tiles_n) * TILE_M;
    const long long col0 = static_cast<long long>(blockIdx.x % tiles_n) * TILE_N;
    const int rows = static_cast<int>(M - row0); // rows and columns left from the tile's corner
    const int cols = static_cast<int>(N - col0);
    const int row = threadIdx.x / TILE_N;
    const int col = threadIdx.x % TILE_N;

    const float* a = A + row0 * lda;
    const float* b = B + col0;
    float sum = 0.0f;
    for (int depth = K; depth > 0; depth -= TILE_K) { // depth: what is left of K
        StagedTile<TILE_M, TILE_K> a_staged;
        StagedTile<TILE_K, TILE_N> b_staged;
        a_staged.fetch(a, lda, rows, depth);
        b_staged.fetch(b, ldb, depth, cols);
        a_staged.store(a_tile);
        b_staged.store(b_tile);
        __syncthreads(); // the tiles are complete
        UNROLL
        for (int k = 0; k < TILE_K; ++k) sum = fmaf(a_tile[row][k], b_tile[k][col], sum);
        __syncthreads(); // nobody reads them any more
        a += TILE_K;
        b += TILE_K * ldb;
    }

    if (row >= rows || col >= cols) return;
    float* c = C + (row0 + row) * ldc + col0 + col;
    *c = beta == 0.0f ? alpha * sum : fmaf(alpha, sum, beta * *c); // beta 0 never reads C
}
