// v9: the warps of a block split K.
//
// What changes from v5: how a block's warps share out its work. All of them compute the same small
// tile, and each multiplies its own steps of k: of the TILE_K that lie in a buffer, an eighth. In
// the end they leave their sums in shared memory, and each thread adds up and stores a few.
// Why: of a small product nothing takes as long as waiting. A small tile gives every SM a block,
// and eight warps are through a tile's steps of k in an eighth of the time.
#include "a_transposed.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int STEPS = TILE_K / WARPS; // of k that a warp takes of each buffer
static_assert(MULTIPLIERS == 32, "a warp must fill the tile: 4 * MICRO_M by 8 * MICRO_N");
static_assert(SLICES == 1 && TILE_K % WARPS == 0, "TILE_K must be a multiple of a block's warps");

struct Tiles {
    float a[STAGES][TILE_K][A_PITCH];
    float b[STAGES][TILE_K][B_PITCH];
};

union Buffers {
    Tiles tiles;
    // Once the tiles are no longer needed. Rows that eight lanes write at once share no bank.
    float sums[WARPS][TILE_M][TILE_N + 4];
};
static_assert(sizeof(Buffers) <= 224 * 1024, "the buffers of both tiles must fit an SM");

// C = alpha * A @ B + beta * C: A is M×K, B is K×N, C is M×N, all row-major; the leading
// dimensions lda, ldb, ldc are in floats. One block computes a TILE_M×TILE_N tile of C.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    sgemm(int M, int N, int K, float alpha, const float* __restrict__ A, long long lda,
          const float* __restrict__ B, long long ldb, float beta, float* __restrict__ C,
          long long ldc) {
    LAUNCHED_SHARED(Buffers, buffers);

    const int tiles_n = (N - 1) / TILE_N + 1;
    const long long row0 = static_cast<long long>(blockIdx.x / tiles_n) * TILE_M;
    const long long col0 = static_cast<long long>(blockIdx.x % tiles_n) * TILE_N;
    const int rows = static_cast<int>(M - row0); // rows and columns left from the tile's corner
    const int cols = static_cast<int>(N - col0);

    TileCopies<THREADS> copies(threadIdx.x, A + row0 * lda, lda, B + col0, ldb, rows, cols);
    int to_copy = K; // what is left of K
    UNROLL
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (to_copy > 0) copies.next(buffers.tiles.a[stage], buffers.tiles.b[stage], to_copy);
        copy_async_commit();
        to_copy -= TILE_K;
    }
    OuterProducts micro_tile(0); // every warp's is the whole tile
    const int warp = threadIdx.x / 32;
    int current = 0, next = STAGES - 1;
    for (int depth = K; depth > 0; depth -= TILE_K) {
        copy_async_wait<STAGES - 2>();
        __syncthreads(); // the current tiles are complete, and nobody reads the next ones any more
        if (to_copy > 0) copies.next(buffers.tiles.a[next], buffers.tiles.b[next], to_copy);
        copy_async_commit(); // even if empty: the wait counts groups
        to_copy -= TILE_K;
        micro_tile.multiply<STEPS>(&buffers.tiles.a[current][warp * STEPS][micro_tile.row],
                                   &buffers.tiles.b[current][warp * STEPS][micro_tile.col]);
        current = current + 1 == STAGES ? 0 : current + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }

    __syncthreads(); // nobody reads the tiles any more
    UNROLL
    for (int i = 0; i < MICRO_M; ++i) {
        UNROLL
        for (int j = 0; j < MICRO_N; j += 4) {
            const int row = micro_tile.row + OuterProducts::rows_to(i);
            const int col = micro_tile.col + OuterProducts::cols_to(j);
            const float* sum = &micro_tile.sum[i][j];
            *reinterpret_cast<float4*>(&buffers.sums[warp][row][col]) =
                make_float4(sum[0], sum[1], sum[2], sum[3]);
        }
    }
    __syncthreads(); // all sums are there

    // Neighbouring threads store neighbouring floats, and need no float4s for that.
    for (int output = threadIdx.x; output < TILE_M * TILE_N; output += THREADS) {
        const int row = output / TILE_N, col = output % TILE_N;
        if (row >= rows || col >= cols) continue;
        float sum = 0.0f;
        UNROLL
        for (int w = 0; w < WARPS; ++w) sum += buffers.sums[w][row][col];
        float* to = C + (row0 + row) * ldc + col0 + col;
        *to = beta == 0.0f ? alpha * sum : fmaf(alpha, sum, beta * *to);
    }
}
