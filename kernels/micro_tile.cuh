// The register micro-tile that v3 introduces and later versions keep: which outputs a thread owns,
// and how it stores them.
//
// A warp's 32 threads stand LANES_M×LANES_N = 4×8 and compute a WARP_M×WARP_N part of the block's
// tile. A thread owns MICRO_M rows, in groups of ROWS_TOGETHER, and MICRO_N columns in groups of
// four; the groups of a warp's threads take turns. Rows stand together as one LDS.128 reads A:
// where A is row-major, it reads four steps of k of one row, and where A is transposed, one step of
// four rows. A warp's LDS.128 then reads A from 4 places, or 32 consecutive floats of B, and has no
// bank conflict.
//
// In v8 the threads stand in SLICES of such rectangles, 2×4 lanes each for four of them. All have
// the same part of the tile, each multiplies its own steps of k, and in the end merge() adds them
// up.
#pragma once
#include "tile.cuh"

constexpr int LANES = 32 / SLICES; // of a slice
constexpr int LANES_M = SLICES == 4 ? 2 : 4;
constexpr int LANES_N = LANES / LANES_M;
constexpr int WARP_M = MICRO_M * LANES_M;
constexpr int WARP_N = MICRO_N * LANES_N;
constexpr int MULTIPLIERS = TILE_M / WARP_M * (TILE_N / WARP_N) * 32; // threads with a micro-tile

static_assert(MICRO_N % 4 == 0, "MICRO_N must be a multiple of 4: B is read in float4s along n");
static_assert(TILE_M % WARP_M == 0, "TILE_M must be a multiple of a warp's 4 * MICRO_M rows");
static_assert(TILE_N % WARP_N == 0, "TILE_N must be a multiple of a warp's 8 * MICRO_N columns");
static_assert(SLICES == 1 || SLICES == 2 || SLICES == 4, "SLICES must be 1, 2 or 4");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");

template <int ROWS_TOGETHER>
struct MicroTile {
    static_assert(SLICES == 1 || MICRO_M / SLICES % ROWS_TOGETHER == 0,
                  "MICRO_M must be a multiple of 4 * SLICES: a slice keeps whole groups of rows");
    static_assert(MICRO_M % ROWS_TOGETHER == 0, "MICRO_M must be a multiple of 4: from v5 on A is "
                                                "read in float4s along m");
    static constexpr int ROWS = MICRO_M / SLICES; // that a thread has after merge(), in sum[0 ...]
    float sum[MICRO_M][MICRO_N] = {};
    int row, col; // of this thread's first output within the block's tile
    int slice;

    __device__ inline explicit MicroTile(int warp = threadIdx.x / 32) {
        const int lane = threadIdx.x % 32;
        slice = lane / LANES;
        // In Z-order: lanes i and i ^ 1 read the same of A, lanes i and i ^ 2 the same of B. Of an
        // LDS.128 shared memory serves 8 lanes at a time, but 16 where lanes agree in such pairs.
        const int lane_m = (lane >> 1 & 1) + (lane >> 3 & 1) * 2;
        const int lane_n = (lane & 1) + (lane >> 2 & 1) * 2 + (lane >> 4) * 4;
        row = warp / (TILE_N / WARP_N) * WARP_M + lane_m % LANES_M * ROWS_TOGETHER;
        col = warp % (TILE_N / WARP_N) * WARP_N + lane_n % LANES_N * 4;
    }

    __device__ inline void clear() {
        UNROLL
        for (int i = 0; i < MICRO_M; ++i) {
            UNROLL
            for (int j = 0; j < MICRO_N; ++j) sum[i][j] = 0.0f;
        }
    }

    // sum += a * b^T: one step of k.
    __device__ inline void add_step(const float (&a)[MICRO_M], const float (&b)[MICRO_N]) {
        // Along one row and back along the next: each FFMA shares an operand with the one before
        // it, so that the register file need not deliver that one again.
        UNROLL
        for (int i = 0; i < MICRO_M; ++i) {
            UNROLL
            for (int step = 0; step < MICRO_N; ++step) {
                const int j = i % 2 ? MICRO_N - 1 - step : step;
                sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
            }
        }
    }

    // How far row i of the micro-tile lies from its first one, and column j likewise.
    static __device__ constexpr int rows_to(int i) {
        return i / ROWS_TOGETHER * ROWS_TOGETHER * LANES_M + i % ROWS_TOGETHER;
    }
    static __device__ constexpr int cols_to(int j) { return j / 4 * 4 * LANES_N + j % 4; }

    // Adds up what the slices have. Each thread is left with the slice-th ROWS rows, in sum[0 ...].
    __device__ inline void merge() { merge<MICRO_M / 2, 16>(); }

    // Of twice as many rows, gives one half to the thread so many lanes away and gets that one's
    // sums for the other half.
    template <int HALF, int DISTANCE>
    __device__ inline void merge() {
        const bool upper = threadIdx.x & DISTANCE;
        UNROLL
        for (int i = 0; i < HALF; ++i) {
            UNROLL
            for (int j = 0; j < MICRO_N; ++j) {
                const float given = upper ? sum[i][j] : sum[i + HALF][j];
                const float kept = upper ? sum[i + HALF][j] : sum[i][j];
                sum[i][j] = kept + __shfl_xor_sync(0xffffffff, given, DISTANCE);
            }
        }
        if constexpr (DISTANCE > LANES) merge<HALF / 2, DISTANCE / 2>();
    }

    // c = alpha * sum + beta * c, where c is the tile's corner and rows×cols of its floats exist.
    __device__ inline void store(float* c, long long ldc, int rows, int cols, float alpha,
                                 float beta) const {
        const int left = cols - col; // columns of C from this thread's first one
        UNROLL
        for (int i = 0; i < ROWS; ++i) {
            const int its_row = row + rows_to(slice * ROWS) + rows_to(i);
            if (its_row >= rows) return;
            float* to = c + its_row * ldc + col;
            float results[MICRO_N];
            UNROLL
            for (int j = 0; j < MICRO_N; ++j) {
                results[j] = alpha * sum[i][j];
                if (beta != 0.0f && cols_to(j) < left) // beta 0 never reads C
                    results[j] = fmaf(alpha, sum[i][j], beta * to[cols_to(j)]);
            }
            UNROLL
            for (int j = 0; j < MICRO_N; j += 4) {
                if (cols_to(j) + 4 <= left && is_float4_address(to)) {
                    store_float4(to + cols_to(j), &results[j]);
                } else {
                    UNROLL
                    for (int n = j; n < j + 4; ++n)
                        if (cols_to(n) < left) to[cols_to(n)] = results[n];
                }
            }
        }
    }
};
