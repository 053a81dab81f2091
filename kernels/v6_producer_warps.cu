// v6: warps that only copy.
//
// What changes from v5: who copies. Four more warps, the producers, fill the buffers; the consumers
// only multiply. They meet at mbarriers, two for each buffer: "full" says that its copies have
// landed, "empty" that nobody reads it any more. The producers hand most of their registers over.
// Why: in v5 every copy, address and bound costs a multiplying warp instructions, and all warps
// wait for the slowest at each step of k. Here each consumer warp goes on as soon as its data are
// there.
#include "a_transposed.cuh"

constexpr int PRODUCERS = THREADS - MULTIPLIERS;
static_assert(PRODUCERS == 128, "THREADS must be four warps more than the tile's multipliers: "
                                "registers move between groups of four warps");
static_assert(STAGES * (TILE_K * (A_PITCH + B_PITCH) * 4 + 16) <= 48 * 1024,
              "the buffers of both tiles must fit the 48 KiB of static shared memory");

// An SM has 64 Ki registers; a block starts with 168 for each of its 384 threads.
constexpr int CONSUMER_REGISTERS = 216;
constexpr int PRODUCER_REGISTERS = 72;

// C = alpha * A @ B + beta * C: A is M×K, B is K×N, C is M×N, all row-major; the leading
// dimensions lda, ldb, ldc are in floats. One block computes a TILE_M×TILE_N tile of C.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    sgemm(int M, int N, int K, float alpha, const float* __restrict__ A, long long lda,
          const float* __restrict__ B, long long ldb, float beta, float* __restrict__ C,
          long long ldc) {
    __shared__ alignas(16) float a_tile[STAGES][TILE_K][A_PITCH];
    __shared__ alignas(16) float b_tile[STAGES][TILE_K][B_PITCH];
    __shared__ mbarrier_t full[STAGES], empty[STAGES];

    const int tiles_n = (N - 1) / TILE_N + 1;
    const long long row0 = static_cast<long long>(blockIdx.x / tiles_n) * TILE_M;
    const long long col0 = static_cast<long long>(blockIdx.x % tiles_n) * TILE_N;
    const int rows = static_cast<int>(M - row0); // rows and columns left from the tile's corner
    const int cols = static_cast<int>(N - col0);

    if (threadIdx.x == 0) {
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
        OuterProducts micro_tile;
        for (int depth = K; depth > 0; depth -= TILE_K) { // depth: what is left of K
            mbarrier_wait(&full[stage], parity);
            micro_tile.multiply(&a_tile[stage][0][micro_tile.row],
                                &b_tile[stage][0][micro_tile.col]);
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty[stage]);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        micro_tile.store(C + row0 * ldc + col0, ldc, rows, cols, alpha, beta);
    } else {
        set_max_registers_decrease<PRODUCER_REGISTERS>();
        TileCopies<PRODUCERS> copies(threadIdx.x - MULTIPLIERS, A + row0 * lda, lda, B + col0, ldb,
                                     rows, cols);
        for (int depth = K; depth > 0; depth -= TILE_K) {
            mbarrier_wait(&empty[stage], parity ^ 1); // the round before; at first, nothing
            copies.next(a_tile[stage], b_tile[stage], depth);
            copy_async_arrive(&full[stage]);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    }
}
