// A kernel to start from: copy this file, change it, and run
//
//     python -m sgemm check --source my.cu       # trace and inspect take it as well
//     python -m benchmarks table --source my.cu  # needs a GPU
//
// The next line is read by all of them. Its numbers arrive as macros of the same names, with VECTOR
// beside them; B says which layout of B the kernel reads. sgemm/source.py lists all keys.
// sgemm: TILE_M=8 TILE_N=32 THREADS=256 B=row

static_assert(TILE_M * TILE_N == THREADS, "this kernel computes one output per thread");

// C = alpha * A @ B + beta * C: A is M×K, B is K×N, C is M×N, all row-major (with B=column, element
// (k, n) of B is B[n * ldb + k] instead); the leading dimensions lda, ldb, ldc are in floats.
//
// What the caller guarantees: M, N and K are at least 1; C overlaps neither A nor B; the grid is
// one-dimensional, a block for each TILE_M×TILE_N tile of C, and a block has THREADS threads.
// What the kernel must keep: any M, N and K work, nothing outside the matrices is read or written,
// and beta = 0 never reads C, which may hold NaN.
extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm(int M, int N, int K, float alpha, const float* __restrict__ A, long long lda,
          const float* __restrict__ B, long long ldb, float beta, float* __restrict__ C,
          long long ldc) {
    const int tiles_n = (N - 1) / TILE_N + 1;
    const long long row =
        static_cast<long long>(blockIdx.x / tiles_n) * TILE_M + threadIdx.x / TILE_N;
    const long long col =
        static_cast<long long>(blockIdx.x % tiles_n) * TILE_N + threadIdx.x % TILE_N;
    if (row >= M || col >= N) return;

    float sum = 0.0f;
    for (int k = 0; k < K; ++k) sum = fmaf(A[row * lda + k], B[k * ldb + col], sum);

    float* c = C + row * ldc + col;
    *c = beta == 0.0f ? alpha * sum : fmaf(alpha, sum, beta * *c);
}
