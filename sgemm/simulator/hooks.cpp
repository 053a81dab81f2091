// What the compiler calls at every access to memory of a kernel that is compiled with
// -fsanitize=thread; these are the simulator's own, instead of the sanitizer's.
#include "runtime.h"

namespace simulator {

template <unsigned BYTES, bool WRITE>
inline void see(const void* address, const void* from) {
    if (mode == CHECK)
        checks::access<BYTES, WRITE>(static_cast<const char*>(address), site(from));
    else if (mode == COUNT)
        counts::access<BYTES, WRITE>(static_cast<const char*>(address), site(from));
}

bool counting;
void count_fma();
void count_fma() { counts::fma(site(__builtin_return_address(0))); }

} // namespace simulator

#define HOOK(name, bytes, write)                                                                   \
    extern "C" void name(void* address) {                                                          \
        simulator::see<bytes, write>(address, __builtin_return_address(0));                        \
    }
#define HOOKS(bytes)                                                                               \
    HOOK(__tsan_read##bytes, bytes, false)                                                         \
    HOOK(__tsan_write##bytes, bytes, true)                                                         \
    HOOK(__tsan_unaligned_read##bytes, bytes, false)                                               \
    HOOK(__tsan_unaligned_write##bytes, bytes, true)                                               \
    HOOK(__tsan_volatile_read##bytes, bytes, false)                                                \
    HOOK(__tsan_volatile_write##bytes, bytes, true)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

extern "C" void __tsan_read_range(void* address, unsigned long bytes) {
    for (unsigned long at = 0; at < bytes; at += 4)
        simulator::see<4, false>(static_cast<char*>(address) + at, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(void* address, unsigned long bytes) {
    for (unsigned long at = 0; at < bytes; at += 4)
        simulator::see<4, true>(static_cast<char*>(address) + at, __builtin_return_address(0));
}
// Reads and writes, but is counted as neither: a GPU counts atomic operations apart.
extern "C" int __tsan_atomic32_fetch_add(volatile int* address, int value, int) {
    auto* at = const_cast<int*>(address);
    if (simulator::mode == simulator::CHECK) {
        simulator::see<4, false>(at, __builtin_return_address(0));
        simulator::see<4, true>(at, __builtin_return_address(0));
    }
    const int before = *at;
    *at = before + value;
    return before;
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
