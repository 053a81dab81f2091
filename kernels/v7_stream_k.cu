// v7: stream-K.
//
// What changes from v6: what a block computes. There is one block per SM, and it stays. Instead of
// a tile it gets its equal share of all the steps of k, tile after tile; where a share begins or
// ends within a tile, the blocks that have multiplied parts of it add them up.
// Why: v6 has a block per tile and 132 SMs take 132 tiles at a time. Of 512 tiles the last 116
// leave SMs idle, and of 32 tiles a hundred SMs see nothing at all.
#include "a_transposed.cuh"
#include "stream_k.cuh"

constexpr int PRODUCERS = THREADS - MULTIPLIERS;
static_assert(PRODUCERS == 128, "THREADS must be four warps more than the tile's multipliers: "
                                "registers move between groups of four warps");
static_assert(STAGES * (TILE_K * (A_PITCH + B_PITCH) * 4 + 16) + 48 <= 48 * 1024,
              "the buffers of both tiles must fit the 48 KiB of static shared memory");

// An SM has 64 Ki registers; a block starts with 168 for each of its 384 threads.
constexpr int CONSUMER_REGISTERS = 216;
constexpr int PRODUCER_REGISTERS = 72;

// C = alpha * A @ B + beta * C: A is M×K, B is K×N, C is M×N, all row-major; the leading
// dimensions lda, ldb, ldc are in floats. The blocks share out `shared_tiles` of C's tiles, of
// TILE_M×TILE_N floats, and take the others one by one; `partials` and `arrivals` are what
// Shared::complete() needs.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    sgemm(int M, int N, int K, float alpha, const float* __restrict__ A, long long lda,
          const float* __restrict__ B, long long ldb, float beta, float* __restrict__ C,
          long long ldc, int shared_tiles, float* partials, int* arrivals) {
    __shared__ alignas(16) float a_tile[STAGES][TILE_K][A_PITCH];
    __shared__ alignas(16) float b_tile[STAGES][TILE_K][B_PITCH];
    __shared__ mbarrier_t full[STAGES], empty[STAGES];
    __shared__ Share share;

    const int tiles_n = (N - 1) / TILE_N + 1;
    if (threadIdx.x == 0) {
        share.init(((M - 1) / TILE_M + 1) * tiles_n, (K - 1) / TILE_K + 1, shared_tiles);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], PRODUCERS);
            mbarrier_init(&empty[stage], MULTIPLIERS / 32); // one thread of each warp arrives
        }
    }
    __syncthreads();

    int stage = 0;
    unsigned parity = 0; // of the current round through the stages
    if (threadIdx.x < MULTIPLIERS) {
        set_max_registers_increase<CONSUMER_REGISTERS>();
        Shared<OuterProducts> micro_tile;
        const SharedPointer<float> a(&a_tile[0][0][micro_tile.row]);
        const SharedPointer<float> b(&b_tile[0][0][micro_tile.col]);
        const SharedPointer<mbarrier_t> is_full(full), is_empty(empty);
        for (int n = 0; share.segment(n).tile < share.tiles; ++n) {
            micro_tile.clear();
            for (int step = warp_uniform(share.segment(n).steps); step > 0; --step) {
                mbarrier_wait(is_full + stage, parity);
                micro_tile.multiply(a + stage * TILE_K * A_PITCH, b + stage * TILE_K * B_PITCH);
                __syncwarp();
                if (threadIdx.x % 32 == 0) mbarrier_arrive(is_empty + stage);
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            const Segment done = share.segment(n);
            if (done.steps < share.steps &&
                !micro_tile.complete(share, done.tile, partials, arrivals))
                continue;
            const long long row0 = static_cast<long long>(done.tile / tiles_n) * TILE_M;
            const long long col0 = static_cast<long long>(done.tile % tiles_n) * TILE_N;
            micro_tile.store(C + row0 * ldc + col0, ldc, static_cast<int>(M - row0),
                             static_cast<int>(N - col0), alpha, beta);
        }
    } else {
        set_max_registers_decrease<PRODUCER_REGISTERS>();
        for (int n = 0; share.segment(n).tile < share.tiles; ++n) {
            const Segment segment = share.segment(n);
            const long long row0 = static_cast<long long>(segment.tile / tiles_n) * TILE_M;
            const long long col0 = static_cast<long long>(segment.tile % tiles_n) * TILE_N;
            const long long k0 = static_cast<long long>(segment.first) * TILE_K;
            TileCopies<PRODUCERS> copies(threadIdx.x - MULTIPLIERS, A + row0 * lda + k0, lda,
                                         B + k0 * ldb + col0, ldb, static_cast<int>(M - row0),
                                         static_cast<int>(N - col0));
            int depth = static_cast<int>(K - k0); // what is left of K
            for (int step = segment.steps; step > 0; --step) {
                mbarrier_wait(&empty[stage], parity ^ 1); // the round before; at first, nothing
                copies.next(a_tile[stage], b_tile[stage], depth);
                copy_async_arrive(&full[stage]);
                depth -= TILE_K;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        }
    }
}
