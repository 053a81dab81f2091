// How v3 and v4 keep A in shared memory: row-major, as it lies in global memory. A thread reads
// four steps of k at once.
#pragma once
#include "micro_tile.cuh"

static_assert(TILE_K % 8 == 0, "TILE_K must be a multiple of 8: A is read in float4s along k, and "
                               "its padded rows must be an odd number of float4s");
static_assert(MULTIPLIERS == THREADS,
              "THREADS must be 32 for each part of the tile of 4 * MICRO_M by 8 * MICRO_N");

// A's rows lie 4 floats further apart in shared memory than they are long. A_PITCH is then an odd
// number of float4s, so that the 4 rows which a warp reads at once start in different banks.
constexpr int A_PITCH = TILE_K + 4;

struct RowMajorMicroTile : MicroTile<1> {
    // sum += a_tile @ b_tile, for this thread's rows and columns.
    __device__ inline void multiply(const float (&a_tile)[TILE_M][A_PITCH],
                                    const float (&b_tile)[TILE_K][TILE_N]) {
        UNROLL
        for (int k0 = 0; k0 < TILE_K; k0 += 4) {
            float4 a[MICRO_M]; // four steps of k at once: A lies row-major, as cp.async leaves it
            UNROLL
            for (int i = 0; i < MICRO_M; ++i)
                a[i] = *reinterpret_cast<const float4*>(&a_tile[row + rows_to(i)][k0]);
            UNROLL
            for (int k = 0; k < 4; ++k) {
                float4 b[MICRO_N / 4];
                UNROLL
                for (int j = 0; j < MICRO_N / 4; ++j)
                    b[j] = *reinterpret_cast<const float4*>(&b_tile[k0 + k][col + cols_to(j * 4)]);
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
};
