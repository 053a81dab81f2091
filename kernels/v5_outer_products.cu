// v5: outer products from a transposed A, on a larger tile.
//
// What changes from v4: how A lies in shared memory. Transposed, a step of k needs only MICRO_M +
// MICRO_N floats of both tiles, read in float4s and used up at once; v4 has to hold four steps of
// A. The registers that this frees let a block compute twice v4's tile, which halves what it reads
// of A; a third buffer keeps the copies, which are many now, one more step ahead.
// Why: an SM issues one instruction per scheduler and cycle, and FFMA wants them all. What v4 loses
// is second cycles for operands from the same register bank, and instructions that are not FFMA.
#include "a_transposed.cuh"

static_assert(MULTIPLIERS == THREADS,
              "THREADS must be 32 for each part of the tile of 4 * MICRO_M by 8 * MICRO_N");
static_assert(STAGES * TILE_K * (A_PITCH + B_PITCH) * 4 <= 48 * 1024,
              "the buffers of both tiles must fit the 48 KiB of static shared memory");

// C = alpha * A @ B + beta * C: A is M×K, B is K×N, C is M×N, all row-major; the leading
// dimensions lda, ldb, ldc are in floats. One block computes a TILE_M×TILE_N tile of C.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    sgemm(int M, int N, int K, float alpha, const float* __restrict__ A, long long lda,
          const float* __restrict__ B, long long ldb, float beta, float* __restrict__ C,
          long long ldc) {
    __shared__ alignas(16) float a_tile[STAGES][TILE_K][A_PITCH];
    __shared__ alignas(16) float b_tile[STAGES][TILE_K][B_PITCH];

    const int tiles_n = (N - 1) / TILE_N + 1;
    const long long row0 = static_cast<long long>(blockIdx.x / tiles_n) * TILE_M;
    const long long col0 = static_cast<long long>(blockIdx.x % tiles_n) * TILE_N;
    const int rows = static_cast<int>(M - row0); // rows and columns left from the tile's corner
    const int cols = static_cast<int>(N - col0);

    TileCopies<THREADS> copies(threadIdx.x, A + row0 * lda, lda, B + col0, ldb, rows, cols);
    int to_copy = K; // what is left of K
    UNROLL
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (to_copy > 0) copies.next(a_tile[stage], b_tile[stage], to_copy);
        copy_async_commit();
        to_copy -= TILE_K;
    }
    OuterProducts micro_tile;
    int current = 0, next = STAGES - 1;
    for (int depth = K; depth > 0; depth -= TILE_K) {
        copy_async_wait<STAGES - 2>();
        __syncthreads(); // the current tiles are complete, and nobody reads the next ones any more
        if (to_copy > 0) copies.next(a_tile[next], b_tile[next], to_copy);
        copy_async_commit(); // even if empty: the wait counts groups
        to_copy -= TILE_K;
        micro_tile.multiply(&a_tile[current][0][micro_tile.row],
                            &b_tile[current][0][micro_tile.col]);
        current = current + 1 == STAGES ? 0 : current + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    micro_tile.store(C + row0 * ldc + col0, ldc, rows, cols, alpha, beta);
}
