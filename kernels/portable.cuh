// What differs between a GPU and the simulator, and nothing else. On a GPU each name below is one
// instruction or a compiler directive; the simulator's header supplies the same names on the CPU.
#pragma once

#ifdef SGEMM_SIMULATOR
#include "simulator.h"
#else

// Unroll the loop that follows completely; its trip count must be a compile-time constant.
#define UNROLL _Pragma("unroll")

// Unroll it so many times; that number must be a compile-time constant.
#define UNROLL_BY(times) UNROLL_PRAGMA(unroll times)
#define UNROLL_PRAGMA(text) _Pragma(#text)

// Stops the kernel when a condition that the host has already guaranteed does not hold.
// Debug builds only: release kernels carry no trace of it.
#ifdef SGEMM_DEBUG
#define DEVICE_ASSERT(condition)                                                                   \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("%s:%d: block %d thread %d: assertion failed: %s\n", __FILE__, __LINE__,        \
                   blockIdx.x, threadIdx.x, #condition);                                           \
            __trap();                                                                              \
        }                                                                                          \
    } while (0)
#else
#define DEVICE_ASSERT(condition) ((void)0)
#endif

// An address in shared memory as PTX names it.
__device__ inline unsigned shared_address(const void* shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// Stores four floats to global memory at once; the address is a multiple of 16 bytes. It is an
// instruction of its own because beside a branch that stores the same floats one by one, compilers
// merge a float4 in C++ with that branch, and then split it into four stores.
__device__ inline void store_float4(float* global, const float* values) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(global), "f"(values[0]),
                 "f"(values[1]), "f"(values[2]), "f"(values[3])
                 : "memory");
}

// Shared memory beyond the 48 KiB that a kernel can declare: the launch asks for it.
#define LAUNCHED_SHARED(type, name)                                                                \
    static_assert(sizeof(type) == DYNAMIC_SHARED_BYTES, "the launch must add sizeof(" #type ")");  \
    extern __shared__ float4 name##_memory[];                                                      \
    type& name = *reinterpret_cast<type*>(name##_memory)

#if __CUDA_ARCH__ >= 800

// Starts copying `valid` of WIDTH floats from global to shared memory and fills the rest with
// zeros. The copy bypasses registers and runs while the thread computes; the data may be read
// only after copy_async_wait() and a barrier. Both addresses are multiples of 4 * WIDTH bytes.
template <int WIDTH>
__device__ inline void copy_async(float* shared, const float* global, int valid) {
    static_assert(WIDTH == 1 || WIDTH == 4, "cp.async here copies one float or a float4");
    const unsigned target = shared_address(shared);
    const int bytes = valid * static_cast<int>(sizeof(float));
    if constexpr (WIDTH == 4) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(global),
                     "r"(bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(global),
                     "r"(bytes)
                     : "memory");
    }
}

// Closes the group of copies that this thread has started since the last commit.
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's most recent groups are still in flight.
template <int PENDING>
__device__ inline void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#else // Turing has no cp.async: the same calls copy at once, through registers.

template <int WIDTH>
__device__ inline void copy_async(float* shared, const float* global, int valid) {
    if (WIDTH == 4 && valid == 4) {
        *reinterpret_cast<float4*>(shared) = *reinterpret_cast<const float4*>(global);
        return;
    }
    UNROLL
    for (int i = 0; i < WIDTH; ++i) shared[i] = i < valid ? global[i] : 0.0f;
}

__device__ inline void copy_async_commit() {}

template <int PENDING>
__device__ inline void copy_async_wait() {}

#endif

#if __CUDA_ARCH__ >= 900

// A barrier in shared memory for producers and consumers of data (mbarrier). It goes from phase to
// phase: a phase ends when as many arrivals have come in as mbarrier_init() said. Whoever waits
// names a phase by its parity: 0 for the first one, then 1, 0, 1, ...
using mbarrier_t = unsigned long long;

// One thread does this, and the block's barrier must follow before anybody uses it.
__device__ inline void mbarrier_init(mbarrier_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
}

__device__ inline void mbarrier_arrive(mbarrier_t* barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(
                     shared_address(barrier))
                 : "memory");
}

// Arrives once the copies that this thread has started with copy_async() have landed.
__device__ inline void copy_async_arrive(mbarrier_t* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

// Waits for the end of the phase of this parity. The phase before the first counts as ended.
__device__ inline void mbarrier_wait(mbarrier_t* barrier, unsigned parity) {
    unsigned ended;
    do {
        asm volatile("{ .reg .pred ended; mbarrier.try_wait.parity.shared.b64 ended, [%1], %2;"
                     " selp.u32 %0, 1, 0, ended; }"
                     : "=r"(ended)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    } while (!ended);
}

// A pointer into shared memory that is kept in a register. Where an array lies depends on the
// block's place in its cluster, and the compiler would rather work that out again at each use.
template <typename T>
class SharedPointer {
    unsigned address;

  public:
    __device__ inline explicit SharedPointer(T* pointer) : address(shared_address(pointer)) {
        asm volatile("" : "+r"(address)); // whatever it is now, nobody knows how it came about
    }
    __device__ inline T* operator+(int distance) const {
        return static_cast<T*>(__cvta_shared_to_generic(address + distance * sizeof(T)));
    }
};

// The same value, of which the compiler now knows that all threads of the warp have it.
__device__ inline int warp_uniform(int value) { return __shfl_sync(0xffffffff, value, 0); }

// Moves registers between warps: all warps of a group of four raise or lower what each of their
// threads may use.
template <int REGISTERS>
__device__ inline void set_max_registers_increase() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ inline void set_max_registers_decrease() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

#endif
#endif
