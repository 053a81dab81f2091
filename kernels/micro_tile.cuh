// The register micro-tile that v3 introduces and v4 keeps: which outputs a thread owns, how it
// multiplies the tiles in shared memory, and how it stores its results.
//
// A warp's 32 threads stand LANES_M×LANES_N = 4×8 and compute a WARP_M×WARP_N part of the block's
// tile. A thread owns MICRO_M rows, LANES_M apart, and MICRO_N columns in groups of four, 4 *
// LANES_N apart: a warp then reads 4 rows of A, or 32 consecutive floats of B, with one
// conflict-free LDS.128.
#pragma once
#include "tile.cuh"

constexpr int LANES_M = 4;
constexpr int LANES_N = 8;
constexpr int WARP_M = MICRO_M * LANES_M;
constexpr int WARP_N = MICRO_N * LANES_N;

static_assert(MICRO_N % 4 == 0, "MICRO_N must be a multiple of 4: B is read in float4s along n");
static_assert(TILE_K % 8 == 0, "TILE_K must be a multiple of 8: A is read in float4s along k, and "
                               "its padded rows must be an odd number of float4s");
static_assert(TILE_M % WARP_M == 0, "TILE_M must be a multiple of a warp's 4 * MICRO_M rows");
static_assert(TILE_N % WARP_N == 0, "TILE_N must be a multiple of a warp's 8 * MICRO_N columns");
static_assert(TILE_M / WARP_M * (TILE_N / WARP_N) * 32 == THREADS,
              "THREADS must be 32 for each part of the tile of 4 * MICRO_M by 8 * MICRO_N");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");

// A's rows lie 4 floats further apart in shared memory than they are long. A_PITCH is then an odd
// number of float4s, so that the 4 rows which a warp reads at once start in different banks.
constexpr int A_PITCH = TILE_K + 4;

struct MicroTile {
    float sum[MICRO_M][MICRO_N] = {};
    int row, col; // of this thread's first output within the block's tile

    __device__ inline MicroTile() {
        const int warp = threadIdx.x / 32;
        const int lane = threadIdx.x % 32;
        row = warp / (TILE_N / WARP_N) * WARP_M + lane / LANES_N;
        col = warp % (TILE_N / WARP_N) * WARP_N + lane % LANES_N * 4;
    }

    // sum += a_tile @ b_tile, for this thread's rows and columns.
    __device__ inline void multiply(const float (&a_tile)[TILE_M][A_PITCH],
                                    const float (&b_tile)[TILE_K][TILE_N]) {
        UNROLL
        for (int k0 = 0; k0 < TILE_K; k0 += 4) {
            float4 a[MICRO_M]; // four steps of k at once: A lies row-major, as cp.async leaves it
            UNROLL
            for (int i = 0; i < MICRO_M; ++i)
                a[i] = *reinterpret_cast<const float4*>(&a_tile[row + i * LANES_M][k0]);
            UNROLL
            for (int k = 0; k < 4; ++k) {
                float4 b[MICRO_N / 4];
                UNROLL
                for (int j = 0; j < MICRO_N / 4; ++j)
                    b[j] = *reinterpret_cast<const float4*>(&b_tile[k0 + k][col + j * 4 * LANES_N]);
                UNROLL
                for (int i = 0; i < MICRO_M; ++i) {
                    const float a_ik = k == 0 ? a[i].x : k == 1 ? a[i].y : k == 2 ? a[i].z : a[i].w;
                    UNROLL
                    for (int j = 0; j < MICRO_N / 4; ++j) {
                        sum[i][j * 4 + 0] = fmaf(a_ik, b[j].x, sum[i][j * 4 + 0]);
                        sum[i][j * 4 + 1] = fmaf(a_ik, b[j].y, sum[i][j * 4 + 1]);
                        sum[i][j * 4 + 2] = fmaf(a_ik, b[j].z, sum[i][j * 4 + 2]);
                        sum[i][j * 4 + 3] = fmaf(a_ik, b[j].w, sum[i][j * 4 + 3]);
                    }
                }
            }
        }
    }

    // c = alpha * sum + beta * c, where c is the tile's corner and rows×cols of its floats exist.
    __device__ inline void store(float* c, long long ldc, int rows, int cols, float alpha,
                                 float beta) const {
        UNROLL
        for (int i = 0; i < MICRO_M; ++i) {
            if (row + i * LANES_M >= rows) return;
            UNROLL
            for (int j = 0; j < MICRO_N; j += 4) {
                const int first = col + j * LANES_N;
                float* to = c + (row + i * LANES_M) * ldc + first;
                float result[4];
                UNROLL
                for (int n = 0; n < 4; ++n) {
                    result[n] = alpha * sum[i][j + n];
                    if (beta != 0.0f && first + n < cols) // beta 0 never reads C
                        result[n] = fmaf(alpha, sum[i][j + n], beta * to[n]);
                }
                if (first + 4 <= cols && is_float4_address(to)) {
                    *reinterpret_cast<float4*>(to) =
                        make_float4(result[0], result[1], result[2], result[3]);
                } else {
                    UNROLL
                    for (int n = 0; n < 4; ++n)
                        if (first + n < cols) to[n] = result[n];
                }
            }
        }
    }
};
