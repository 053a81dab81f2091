// Tiles of A and B on their way from global to shared memory: v2 and v3 use all of this, v4 copies
// asynchronously, and v5 and later share a tile out in another way (a_transposed.cuh). VECTOR says
// whether global memory is accessed float4 by float4 (1) or float by float (0).
#pragma once
#include "portable.cuh"

constexpr int ACCESS_WIDTH = VECTOR ? 4 : 1;

// A float4 access needs its address on a 16-byte boundary. The host picks VECTOR = 1 only where the
// base addresses and leading dimensions of A and B guarantee that.
__device__ inline bool is_float4_address(const float* address) {
    return reinterpret_cast<unsigned long long>(address) % sizeof(float4) == 0;
}

// Shares a ROWS×COLS tile out among the block's threads, ACCESS_WIDTH floats per thread and step.
// A step is a whole number of rows, so that a thread stays in its column and moves from address to
// address by one addition.
template <int ROWS, int COLS>
struct TileAccess {
    static constexpr int PER_ROW = COLS / ACCESS_WIDTH;
    static constexpr int ROWS_PER_STEP = THREADS / PER_ROW;
    static constexpr int STEPS = (ROWS + ROWS_PER_STEP - 1) / ROWS_PER_STEP;
    static_assert(COLS % 4 == 0, "a row of a tile must hold whole float4s");
    static_assert(THREADS % PER_ROW == 0,
                  "THREADS must be a multiple of the accesses that a row of a tile takes");

    // Calls access(step, row, col, address, valid) for each access of this thread to the tile that
    // starts at `source` in a row-major matrix with leading dimension ld; `valid` is how many of
    // its ACCESS_WIDTH floats exist, where the matrix ends `rows` and `cols` past `source`.
    template <typename Access>
    static __device__ inline void for_each(const float* source, long long ld, int rows, int cols,
                                           Access access) {
        const int first_row = threadIdx.x / PER_ROW;
        const int col = threadIdx.x % PER_ROW * ACCESS_WIDTH;
        const int valid = max(0, min(ACCESS_WIDTH, cols - col));
        const float* address = source + first_row * ld + col;
        UNROLL
        for (int step = 0; step < STEPS; ++step) {
            const int row = step * ROWS_PER_STEP + first_row;
            if (ROWS % ROWS_PER_STEP != 0 && row >= ROWS) break;
            access(step, row, col, address, row < rows ? valid : 0);
            address += ROWS_PER_STEP * ld;
        }
    }
};

// This thread's share of a ROWS×COLS tile, held in registers on the way to shared memory.
template <int ROWS, int COLS>
struct StagedTile {
    using Accesses = TileAccess<ROWS, COLS>;
    float values[Accesses::STEPS][ACCESS_WIDTH];

    // Reads it from global memory: zeros beyond the matrix.
    __device__ inline void fetch(const float* source, long long ld, int rows, int cols) {
        Accesses::for_each(
            source, ld, rows, cols,
            [&](int step, int /*row*/, int /*col*/, const float* address, int valid) {
                if (VECTOR && valid == 4) {
                    DEVICE_ASSERT(is_float4_address(address));
                    *reinterpret_cast<float4*>(values[step]) =
                        *reinterpret_cast<const float4*>(address);
                } else {
                    UNROLL
                    for (int i = 0; i < ACCESS_WIDTH; ++i)
                        values[step][i] = i < valid ? address[i] : 0.0f;
                }
            });
    }

    // Writes it to shared memory; a barrier must follow before other threads read the tile.
    template <int PITCH>
    __device__ inline void store(float (&tile)[ROWS][PITCH]) const {
        Accesses::for_each(nullptr, 0, ROWS, COLS,
                           [&](int step, int row, int col, const float*, int) {
                               UNROLL
                               for (int i = 0; i < ACCESS_WIDTH; ++i)
                                   tile[row][col + i] = values[step][i];
                           });
    }
};
