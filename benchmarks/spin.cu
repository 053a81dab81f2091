// Keeps one thread busy for *cycles of its SM's clock: a slowdown of a known size.
extern "C" __global__ void spin(const long long* cycles) {
    const long long start = clock64();
    while (clock64() - start < *cycles) {
    }
}
