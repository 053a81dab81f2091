// sgemm: TILE_M=8 TILE_N=8 THREADS=64
// Planted: an address at which nothing is.

extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm(int M, int N, int K, float alpha, const float* A, long long lda, const float* B,
          long long ldb, float beta, float* C, long long ldc) {
    *reinterpret_cast<float*>(64) = alpha;
}
