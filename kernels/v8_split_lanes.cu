// v8: a warp's lanes split K.
//
// What changes from v7: how a warp's lanes share out its work. They used to stand 4×8 over 64×64
// outputs and took every step of k. Now they stand in four slices of 2×4 over 32×32 outputs, and
// each slice takes every fourth step of k; in the end shuffles add the slices up. So eight warps
// fill a tile of 64×128, a quarter of v7's, with micro-tiles as large as before.
// Why: a small C has few tiles of 128×256. Smaller tiles would do, but smaller micro-tiles read
// more of shared memory per FFMA, and splitting K between blocks costs a trip through memory.
#include "a_transposed.cuh"
#include "stream_k.cuh"

constexpr int PRODUCERS = THREADS - MULTIPLIERS;
static_assert(PRODUCERS == 128, "THREADS must be four warps more than the tile's multipliers: "
                                "registers move between groups of four warps");

// A step takes a quarter of the time that it takes in v7: the copies must be further ahead.
struct Buffers {
    float a_tile[STAGES][TILE_K][A_PITCH];
    float b_tile[STAGES][TILE_K][B_PITCH];
};
static_assert(sizeof(Buffers) <= 224 * 1024, "the buffers of both tiles must fit an SM");

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
    LAUNCHED_SHARED(Buffers, buffers);
    float (&a_tile)[STAGES][TILE_K][A_PITCH] = buffers.a_tile;
    float (&b_tile)[STAGES][TILE_K][B_PITCH] = buffers.b_tile;
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
        const SharedPointer<float> a(&a_tile[0][micro_tile.slice][micro_tile.row]);
        const SharedPointer<float> b(&b_tile[0][micro_tile.slice][micro_tile.col]);
        for (int n = 0; share.segment(n).tile < share.tiles; ++n) {
            micro_tile.clear();
            for (int step = warp_uniform(share.segment(n).steps); step > 0; --step) {
                mbarrier_wait(&full[stage], parity);
                micro_tile.multiply(a + stage * TILE_K * A_PITCH, b + stage * TILE_K * B_PITCH);
                __syncwarp();
                if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty[stage]);
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            micro_tile.merge();
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
