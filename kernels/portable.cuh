// What differs between a GPU and the simulator, and nothing else. On a GPU each name below is one
// instruction or a compiler directive; the simulator's header supplies the same names on the CPU.
#pragma once

#ifdef SGEMM_SIMULATOR
#include "simulator.h"
#else

// Unroll the loop that follows completely; its trip count must be a compile-time constant.
#define UNROLL _Pragma("unroll")

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

#if __CUDA_ARCH__ >= 800

// Starts copying `valid` of WIDTH floats from global to shared memory and fills the rest with
// zeros. The copy bypasses registers and runs while the thread computes; the data may be read
// only after copy_async_wait() and a barrier. Both addresses are multiples of 4 * WIDTH bytes.
template <int WIDTH>
__device__ inline void copy_async(float* shared, const float* global, int valid) {
    static_assert(WIDTH == 1 || WIDTH == 4, "cp.async here copies one float or a float4");
    const unsigned target = static_cast<unsigned>(__cvta_generic_to_shared(shared));
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
#endif
