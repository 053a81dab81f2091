// v3: a register micro-tile per thread.
//
// What changes from v2: a thread computes MICRO_M×MICRO_N outputs instead of one.
// Why: v2 reads two floats from shared memory for every FMA, and shared memory is far too slow for
// that. A thread that holds 16 floats of A and 8 of B in registers makes 128 FMAs of these 24, and
// its 128 independent sums hide the latency of the FMA.
// What it needs: a larger tile, so that enough threads remain, and the warp layout of
// micro_tile.cuh. A stays untransposed, so that the copies into shared memory are v2's.
#include "a_row_major.cuh"

static_assert((TILE_M * A_PITCH + TILE_K * TILE_N) * 4 <= 48 * 1024,
              "both tiles must fit the 48 KiB of static shared memory");

// C = alpha * A @ B + beta * C: A is M×K, B is K×N, C is M×N, all row-major; the leading
// dimensions lda, ldb, ldc are in floats. One block computes a TILE_M×TILE_N tile of C.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    sgemm(int M, int N, int K, float alpha, const float* __restrict__ A, long long lda,
          const float* __restrict__ B, long long ldb, float beta, float* __restrict__ C,
          long long ldc) {
    __shared__ alignas(16) float a_tile[TILE_M][A_PITCH];
    __shared__ alignas(16) float b_tile[TILE_K][TILE_N];

    const int tiles_n = (N - 1) / TILE_N + 1;
    const long long row0 = static_cast<long long>(blockIdx.x / tiles_n) * TILE_M;
    const long long col0 = static_cast<long long>(blockIdx.x % tiles_n) * TILE_N;
    const int rows = static_cast<int>(M - row0); // rows and columns left from the tile's corner
    const int cols = static_cast<int>(N - col0);

    const float* a = A + row0 * lda;
    const float* b = B + col0;
    RowMajorMicroTile micro_tile;
    for (int depth = K; depth > 0; depth -= TILE_K) { // depth: what is left of K
        StagedTile<TILE_M, TILE_K> a_staged;
        StagedTile<TILE_K, TILE_N> b_staged;
        a_staged.fetch(a, lda, rows, depth);
        b_staged.fetch(b, ldb, depth, cols);
        a_staged.store(a_tile);
        b_staged.store(b_tile);
        __syncthreads(); // the tiles are complete
        micro_tile.multiply(a_tile, b_tile);
        __syncthreads(); // nobody reads them any more
        a += TILE_K;
        b += TILE_K * ldb;
    }
    micro_tile.store(C + row0 * ldc + col0, ldc, rows, cols, alpha, beta);
}
