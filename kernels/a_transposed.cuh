// How v5 and later keep A in shared memory: transposed, so that one step of k reads a thread's
// MICRO_M values of A just as it reads its MICRO_N values of B, in float4s, and uses them up.
//
// cp.async transposes: it copies float by float, each to the place where it belongs. So A needs no
// alignment either.
#pragma once
#include "micro_tile.cuh"

static_assert(TILE_K % 8 == 0,
              "TILE_K must be a multiple of 8: 8 lanes read a sector of A along k");

// A warp copies 8 steps of k of 4 rows of A at once. Here the steps lie 4 banks apart, and the 4
// rows fill the banks between: no two of the 32 floats share a bank. With SLICES it matters more
// that the slices' loads share none, of as many steps of k at once; two or four copies then do.
constexpr int A_PITCH = TILE_M + (SLICES == 1 ? 4 : 4 * LANES_M);
constexpr int B_PITCH = TILE_N + (SLICES == 1 ? 0 : 4 * LANES_N);
static_assert(TILE_M % 32 == 0 && TILE_N % 32 == 0,
              "TILE_M and TILE_N must be multiples of 32: a warp then uses all banks");

// Starts the copies that fill tiles of A and B, for one of COPIERS threads, tile after tile along
// k. A thread copies one column of A's tile and part of one or a few rows of B's, so that most of
// its addresses differ by constants.
template <int COPIERS>
class TileCopies {
    static constexpr int LANES_K = 8;
    static constexpr int A_ROWS_PER_STEP = COPIERS / LANES_K;
    static constexpr int A_STEPS = TILE_M / A_ROWS_PER_STEP;
    static_assert(TILE_M % A_ROWS_PER_STEP == 0, "TILE_M must be a multiple of COPIERS / 8");

    // The lanes of a row of B: so many that the rows which a warp writes at once share few banks.
    static constexpr int FEWEST_LANES_N = VECTOR ? 8 : 16;
    static constexpr int LANES_N =
        COPIERS / TILE_K > FEWEST_LANES_N ? COPIERS / TILE_K : FEWEST_LANES_N;
    static constexpr int B_ROWS_PER_STEP = COPIERS / LANES_N;
    static constexpr int B_COLS_PER_PART = LANES_N * ACCESS_WIDTH;
    static_assert(TILE_K % B_ROWS_PER_STEP == 0 && TILE_N % B_COLS_PER_PART == 0,
                  "the threads that copy must share out the rows of B's tile evenly");

    const float* a[A_STEPS]; // this thread's next float of A in each of its rows
    const float* b;          // and its next access to B
    long long ldb;
    int a_row, a_k, b_row, b_col; // where in the tiles they go
    int b_cols;                   // columns of B left from there
    bool b_is_whole;              // all columns of the tile exist

    template <bool WHOLE>
    __device__ inline void start_copies(float (&a_tile)[TILE_K][A_PITCH],
                                        float (&b_tile)[TILE_K][B_PITCH], int depth) {
        UNROLL
        for (int k = 0; k < TILE_K; k += LANES_K) {
            const bool exists = WHOLE || k + a_k < depth;
            UNROLL
            for (int step = 0; step < A_STEPS; ++step)
                copy_async<1>(&a_tile[k + a_k][a_row + step * A_ROWS_PER_STEP],
                              exists ? a[step] + k : a[step], exists);
        }
        UNROLL
        for (int row = 0; row < TILE_K; row += B_ROWS_PER_STEP) {
            UNROLL
            for (int col = 0; col < TILE_N; col += B_COLS_PER_PART) {
                DEVICE_ASSERT(!VECTOR || is_float4_address(b + col));
                const int left = b_row + row < depth ? b_cols - col : 0;
                copy_async<ACCESS_WIDTH>(&b_tile[b_row + row][b_col + col], b + col,
                                         WHOLE ? ACCESS_WIDTH : max(0, min(ACCESS_WIDTH, left)));
            }
            b += B_ROWS_PER_STEP * ldb;
        }
    }

  public:
    // a_corner and b_corner begin the first tiles; rows of A and cols of B exist from there.
    __device__ inline TileCopies(int thread, const float* a_corner, long long lda,
                                 const float* b_corner, long long ldb_, int rows, int cols)
        : ldb(ldb_), a_row(thread / LANES_K), a_k(thread % LANES_K), b_row(thread / LANES_N),
          b_col(thread % LANES_N * ACCESS_WIDTH), b_cols(cols - b_col), b_is_whole(cols >= TILE_N) {
        UNROLL
        for (int step = 0; step < A_STEPS; ++step) {
            // Rows beyond the matrix repeat its last one: their results are never stored.
            const int row = min(a_row + step * A_ROWS_PER_STEP, rows - 1);
            a[step] = a_corner + row * lda + a_k;
        }
        b = b_corner + b_row * ldb + b_col;
    }

    // Copies the next tiles, with zeros beyond the matrix, of which `depth` floats are left along
    // k.
    __device__ inline void next(float (&a_tile)[TILE_K][A_PITCH], float (&b_tile)[TILE_K][B_PITCH],
                                int depth) {
        if (depth >= TILE_K && b_is_whole)
            start_copies<true>(a_tile, b_tile, depth);
        else
            start_copies<false>(a_tile, b_tile, depth);
        UNROLL
        for (int step = 0; step < A_STEPS; ++step) a[step] += TILE_K;
    }
};

struct OuterProducts : MicroTile<4> {
    using MicroTile<4>::MicroTile;

    // sum += a_tile^T @ b_tile, for this thread's rows and columns: an outer product per step of k,
    // of which its slice takes every SLICES-th. The pointers say where those begin in the tiles: at
    // [slice][row] and [slice][col].
    template <int STEPS = TILE_K>
    __device__ inline void multiply(const float* a_tile, const float* b_tile) {
        UNROLL
        for (int k = 0; k < STEPS; k += SLICES) {
            float a[MICRO_M], b[MICRO_N];
            UNROLL
            for (int i = 0; i < MICRO_M; i += 4)
                *reinterpret_cast<float4*>(&a[i]) =
                    *reinterpret_cast<const float4*>(&a_tile[k * A_PITCH + rows_to(i)]);
            UNROLL
            for (int j = 0; j < MICRO_N; j += 4)
                *reinterpret_cast<float4*>(&b[j]) =
                    *reinterpret_cast<const float4*>(&b_tile[k * B_PITCH + cols_to(j)]);
            add_step(a, b);
        }
    }
};
