// The cycle counter of every SM that a block lands on: with as many blocks as SMs, on an idle GPU,
// nearly all of them. Which SM it was stands beside the count, as blocks choose no SM.

extern "C" __global__ void read_counters(long long* __restrict__ counters) {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    counters[2 * blockIdx.x] = sm;
    counters[2 * blockIdx.x + 1] = clock64();
}
