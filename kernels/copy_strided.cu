// Copies a rows×cols matrix between any two layouts: the transposing kernel behind a column-major
// B, and the way in and out for every view that a version of the ladder cannot read or write
// itself.
//
// A block moves one TILE×TILE tile through shared memory. Each of the two matrices is walked along
// its rows or along its columns, whichever keeps neighbouring threads nearer to each other, so
// reads and writes both coalesce. The extra column keeps a column walk through the tile free of
// bank conflicts.
#include "portable.cuh"

static_assert(THREADS % TILE == 0 && TILE % (THREADS / TILE) == 0,
              "a block copies whole rows of the tile, and a whole number of them per thread");

__device__ inline long long magnitude(long long stride) { return stride < 0 ? -stride : stride; }

// Whether a matrix of so many rows is walked along its columns. Rows that repeat (stride 0) are
// not.
__device__ inline bool by_columns(int rows, long long row_stride, long long col_stride) {
    return rows > 1 && row_stride != 0 && magnitude(row_stride) < magnitude(col_stride);
}

// target[i * target_row + j * target_col] = source[i * source_row + j * source_col]; all strides
// in floats, of either sign.
extern "C" __global__ void __launch_bounds__(THREADS)
    copy_strided(int rows, int cols, const float* __restrict__ source, long long source_row,
                 long long source_col, float* __restrict__ target, long long target_row,
                 long long target_col) {
    __shared__ float tile[TILE][TILE + 1];
    const int tiles_across = (cols - 1) / TILE + 1;
    const long long row0 = static_cast<long long>(blockIdx.x / tiles_across) * TILE;
    const long long col0 = static_cast<long long>(blockIdx.x % tiles_across) * TILE;
    const int fast = threadIdx.x % TILE; // neighbouring threads
    const int slow = threadIdx.x / TILE;

    const bool source_by_columns = by_columns(rows, source_row, source_col);
    UNROLL
    for (int i = 0; i < TILE; i += THREADS / TILE) {
        const int row = source_by_columns ? fast : slow + i;
        const int col = source_by_columns ? slow + i : fast;
        if (row0 + row < rows && col0 + col < cols)
            tile[row][col] = source[(row0 + row) * source_row + (col0 + col) * source_col];
    }
    __syncthreads();

    const bool target_by_columns = by_columns(rows, target_row, target_col);
    UNROLL
    for (int i = 0; i < TILE; i += THREADS / TILE) {
        const int row = target_by_columns ? fast : slow + i;
        const int col = target_by_columns ? slow + i : fast;
        if (row0 + row < rows && col0 + col < cols)
            target[(row0 + row) * target_row + (col0 + col) * target_col] = tile[row][col];
    }
}
