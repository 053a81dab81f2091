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
            float a[MICRO_M][4]; // four steps of k at once: they lie side by side in a row of A
            UNROLL
            for (int i = 0; i < MICRO_M; ++i)
                *reinterpret_cast<float4*>(a[i]) =
                    *reinterpret_cast<const float4*>(&a_tile[row + rows_to(i)][k0]);
            UNROLL
            for (int k = 0; k < 4; ++k) {
                float b[MICRO_N];
                UNROLL
                for (int j = 0; j < MICRO_N; j += 4)
                    *reinterpret_cast<float4*>(&b[j]) =
                        *reinterpret_cast<const float4*>(&b_tile[k0 + k][col + cols_to(j)]);
                float a_k[MICRO_M];
                UNROLL
                for (int i = 0; i < MICRO_M; ++i) a_k[i] = a[i][k];
                add_step(a_k, b);
            }
        }
    }
};
