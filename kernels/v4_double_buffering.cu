// v4: double buffering with asynchronous copies.
//
// What changes from v3: only the copies. There are two buffers for each tile; while the threads
// multiply one pair, cp.async (LDGSTS in the SASS) fills the other from global memory, without
// passing through registers.
// Why: v3's threads wait for global memory at every step of k, between the two barriers. Here the
// next tile travels during the multiplication, and one barrier per step is enough: it says both
// that everybody's part of the current tile has landed and that nobody reads the other one.
#include "a_row_major.cuh"

static_assert(2 * (TILE_M * A_PITCH + TILE_K * TILE_N) * 4 <= 48 * 1024,
              "two buffers of both tiles must fit the 48 KiB of static shared memory");

// Starts the copies that fill a tile, with zeros beyond the matrix. They are complete after
// copy_async_wait() and, for the other threads' part, a barrier.
template <int ROWS, int COLS, int PITCH>
__device__ inline void copy_tile_async(float (&tile)[ROWS][PITCH], const float* source,
                                       long long ld, int rows, int cols) {
    TileAccess<ROWS, COLS>::for_each(
        source, ld, rows, cols,
        [&](int /*step*/, int row, int col, const float* address, int valid) {
            DEVICE_ASSERT(!VECTOR || is_float4_address(address));
            copy_async<ACCESS_WIDTH>(&tile[row][col], address, valid);
        });
}

// C = alpha * A @ B + beta * C: A is M×K, B is K×N, C is M×N, all row-major; the leading
// dimensions lda, ldb, ldc are in floats. One block computes a TILE_M×TILE_N tile of C.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    sgemm(int M, int N, int K, float alpha, const float* __restrict__ A, long long lda,
          const float* __restrict__ B, long long ldb, float beta, float* __restrict__ C,
          long long ldc) {
    __shared__ alignas(16) float a_tile[2][TILE_M][A_PITCH];
    __shared__ alignas(16) float b_tile[2][TILE_K][TILE_N];

    const int tiles_n = (N - 1) / TILE_N + 1;
    const long long row0 = static_cast<long long>(blockIdx.x / tiles_n) * TILE_M;
    const long long col0 = static_cast<long long>(blockIdx.x % tiles_n) * TILE_N;
    const int rows = static_cast<int>(M - row0); // rows and columns left from the tile's corner
    const int cols = static_cast<int>(N - col0);

    const float* a = A + row0 * lda;
    const float* b = B + col0;
    copy_tile_async<TILE_M, TILE_K>(a_tile[0], a, lda, rows, K);
    copy_tile_async<TILE_K, TILE_N>(b_tile[0], b, ldb, K, cols);
    copy_async_commit();

    RowMajorMicroTile micro_tile;
    int current = 0;
    for (int depth = K; depth > 0; depth -= TILE_K) { // depth: what is left of K
        copy_async_wait<0>();
        __syncthreads(); // the current tiles are complete, and nobody reads the others any more
        a += TILE_K;
        b += TILE_K * ldb;
        if (depth > TILE_K) {
            copy_tile_async<TILE_M, TILE_K>(a_tile[1 - current], a, lda, rows, depth - TILE_K);
            copy_tile_async<TILE_K, TILE_N>(b_tile[1 - current], b, ldb, depth - TILE_K, cols);
            copy_async_commit();
        }
        micro_tile.multiply(a_tile[current], b_tile[current]);
        current = 1 - current;
    }
    micro_tile.store(C + row0 * ldc + col0, ldc, rows, cols, alpha, beta);
}
