// How v7 and v8 share out the work: by steps of k, not by tiles, so that all blocks get equally
// much and finish together.
//
// Some tiles are shared: their steps, one tile's after the other's, are dealt out to the blocks in
// equal runs, and of the blocks of a tile the last ones add up what the others have left in memory.
// The other tiles each belong to one block. The host decides how many are shared (Version.plan).
#pragma once
#include "micro_tile.cuh"

// Steps of k that a block multiplies for one tile.
struct Segment {
    int tile, first, steps;
};

// The work of one block, segment after segment. It lies in shared memory, where it costs the
// multiplying threads no registers.
struct Share {
    long long begin, end;   // of the block's run of shared steps
    long long shared_steps; // of all blocks
    int tiles, shared_tiles;
    int steps; // of one tile

    __device__ inline void init(int tiles_, int steps_, int shared_tiles_) {
        tiles = tiles_;
        steps = steps_;
        shared_tiles = shared_tiles_;
        shared_steps = static_cast<long long>(shared_tiles) * steps;
        begin = begin_of(blockIdx.x);
        end = begin_of(blockIdx.x + 1);
    }

    __device__ inline long long begin_of(int block) const {
        return block * shared_steps / static_cast<int>(gridDim.x);
    }

    // The block in whose run a shared step is.
    __device__ inline int block_of(long long step) const {
        return static_cast<int>(((step + 1) * static_cast<int>(gridDim.x) - 1) / shared_steps);
    }

    // The block's n-th segment. After its last one, the tile is none of C's.
    __device__ inline Segment segment(int n) const {
        if (begin < end) {
            const int first_tile = static_cast<int>(begin / steps);
            const int last_tile = static_cast<int>((end - 1) / steps);
            if (n <= last_tile - first_tile) {
                const long long start = static_cast<long long>(first_tile + n) * steps;
                const int first = static_cast<int>(max(begin - start, 0LL));
                const int past = static_cast<int>(min(end - start, static_cast<long long>(steps)));
                return {first_tile + n, first, past - first};
            }
            n -= last_tile - first_tile + 1;
        }
        return {shared_tiles + static_cast<int>(blockIdx.x + n * gridDim.x), 0, steps};
    }
};

// A micro-tile whose steps of k several blocks have multiplied. Each thread works for itself: it
// meets the threads with the same micro-tile in the other blocks, and nobody else.
template <typename MicroTile>
struct Shared : MicroTile {
    // The blocks of a tile add up in a tree: of so many neighbours the last one adds up all. One
    // block alone would have to wait for the sums of up to a hundred.
    static constexpr int FAN_IN = 8;

    // So many blocks' sums are on their way from memory at a time: together they are as many floats
    // as a micro-tile has.
    static constexpr int BLOCKS_AT_ONCE = MICRO_M / MicroTile::ROWS;

    // Leaves the thread's sums in memory for whoever comes last, and returns false; the last one of
    // all takes what the others have left, and returns true: its sums are then complete. Their
    // order is the same whoever comes last. `partials` has two slots per block, for the two tiles
    // which its run may leave incomplete; `arrivals` has a count for each micro-tile of each block,
    // and starts at 0.
    __device__ inline bool complete(const Share& share, int tile, float* partials, int* arrivals) {
        const long long first_step = static_cast<long long>(tile) * share.steps;
        const int first = share.block_of(first_step);
        const int last = share.block_of(first_step + share.steps - 1);

        int block = blockIdx.x; // in whose slot the thread leaves its sums
        for (int apart = 1; apart <= last - first; apart *= FAN_IN) {
            float* its = slot(partials, share, block, first_step);
            block -= (block - first) % (apart * FAN_IN); // the first of the neighbours
            const int others = min(FAN_IN - 1, (last - block) / apart);
            if (others == 0) continue;
            UNROLL
            for (int i = 0; i < MicroTile::ROWS; ++i) {
                UNROLL
                for (int j = 0; j < MICRO_N; ++j)
                    its[(i * MICRO_N + j) * MULTIPLIERS] = this->sum[i][j];
            }
            // They count at the second one, which is the second of no others.
            int* count = &arrivals[(block + apart) * MULTIPLIERS + threadIdx.x];
            __threadfence(); // the sums are there before the arrival
            if (atomicAdd(count, 1) < others) return false;
            __threadfence();

            this->clear();
            UNROLL_BY(BLOCKS_AT_ONCE)
            for (int other = 0; other <= others; ++other) {
                its = slot(partials, share, block + other * apart, first_step);
                UNROLL
                for (int i = 0; i < MicroTile::ROWS; ++i) {
                    UNROLL
                    for (int j = 0; j < MICRO_N; ++j)
                        this->sum[i][j] += __ldcg(&its[(i * MICRO_N + j) * MULTIPLIERS]);
                }
            }
        }
        return true;
    }

  private:
    // Where a block leaves this thread's sums of the tile that begins with first_step: neighbouring
    // threads' sums lie side by side. A block's first slot is for the tile in which its run begins.
    static __device__ inline float* slot(float* partials, const Share& share, int block,
                                         long long first_step) {
        const long long number = 2LL * block + (share.begin_of(block) < first_step);
        return partials + number * (MicroTile::ROWS * MICRO_N * MULTIPLIERS) + threadIdx.x;
    }
};
