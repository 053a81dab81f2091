// As many FP32 multiply-adds as the SMs can issue, from registers alone: the ceiling that a
// multiplication on the FP32 units is measured against.
//
// Every thread carries CHAINS sums that do not wait for one another. A step takes each sum to
// 1 - sum, exactly, so after an even number of steps every sum is what it was: the host can verify
// that the steps were made, and no step makes the values any simpler. The factor, -1, and the
// addend, 1, come from the host, so the compiler can foresee nothing.

extern "C" __global__ void __launch_bounds__(THREADS)
    ffma_peak(float factor, float addend, int iterations, const float* __restrict__ start,
              float* __restrict__ end) {
    const int first = (blockIdx.x * THREADS + threadIdx.x) * CHAINS;
    float sum[CHAINS];
#pragma unroll
    for (int chain = 0; chain < CHAINS; ++chain) sum[chain] = start[first + chain];
#pragma unroll 1
    for (int i = 0; i < iterations; ++i) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int chain = 0; chain < CHAINS; ++chain)
                sum[chain] = fmaf(sum[chain], factor, addend);
        }
    }
#pragma unroll
    for (int chain = 0; chain < CHAINS; ++chain) end[first + chain] = sum[chain];
}
