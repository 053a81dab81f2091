// Runs a CUDA kernel on the CPU: what nvcc's language and portable.cuh's GPU half supply, in C++.
//
// The model. Blocks run one after the other, and so do the threads of a block, each until it
// reaches a barrier or returns. A thread that waits is a fiber: its stack stays, and the next
// thread runs. Once all wait, the next interval between two barriers begins. The seed decides the
// order of the blocks, and the order of the threads anew in every interval of every block.
//
// Threads of one block may also wait for each other through mbarriers, named barriers and warps.
// Then a round takes the place of the interval: of the threads that can go on those of some or all
// warps run, each until it has to wait again. An arrival at an mbarrier may end a thread's turn
// early, and copies that report to an mbarrier land at once, after some rounds, or once nobody can
// go on: the seed decides.
//
// What a GPU leaves undefined goes wrong here, so that it shows: shared memory holds NaN when a
// block starts; an asynchronous copy leaves NaN in its target at once and brings the data, read
// from the source only then, at the wait that covers its group or with its arrival at an mbarrier;
// a barrier that only some of the block's threads reach ends the launch with an error, and so does
// an invalid address, or threads that all wait with nothing in flight.
#pragma once

#include <stdint.h> // no <math.h>: it has global functions named y0, j1, gamma
#include <stdio.h>
#include <string.h>

#ifdef __clang__ // a kernel whose variables may not fit its stack does not compile
#pragma GCC diagnostic error "-Wframe-larger-than"
#else
#pragma GCC diagnostic error "-Wframe-larger-than=32768"
#endif

// ---- The language ----

#ifndef SIMULATOR_CHECKED
#define __global__
#else // every place in the code is then the kernel's own
#define __global__ __attribute__((flatten))
#endif
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
// A library's thread-local variables are one range of memory, which the simulator can find.
#ifndef SIMULATOR_CHECKED
#define __shared__ static thread_local
#else // each at the begin of the banks, with room between any two where an access is out of bounds
#define __shared__ SIMULATOR_GAP(__COUNTER__) [[gnu::aligned(128)]] static thread_local
#define SIMULATOR_GAP(n) SIMULATOR_NAMED_GAP(n)
#define SIMULATOR_NAMED_GAP(n) [[gnu::used]] static thread_local char simulator_gap_##n[65536];
#endif
// C++ has no place for alignas between "static" and the type, where CUDA has one.
#define alignas(bytes) __attribute__((aligned(bytes)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define LAUNCHED_SHARED(type, name)                                                                \
    static_assert(sizeof(type) == DYNAMIC_SHARED_BYTES, "the launch must add sizeof(" #type ")");  \
    __shared__ alignas(16) type name
#define UNROLL_BY(times)
#ifdef UNROLL_LOOPS
#define UNROLL _Pragma("GCC unroll 64")
#else
#define UNROLL // left to the compiler: unrolled completely, kernels compile and run more slowly
#endif

using uint = unsigned int;

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct float3 {
    float x, y, z;
};
#ifndef SIMULATOR_CHECKED
#define SIMULATOR_VECTOR2(name, T)                                                                 \
    struct alignas(2 * sizeof(T)) name {                                                           \
        T x, y;                                                                                    \
    };
#define SIMULATOR_VECTOR4(name, T)                                                                 \
    struct alignas(4 * sizeof(T)) name {                                                           \
        T x, y, z, w;                                                                              \
    };
#else // copied by one access to memory
#define SIMULATOR_VECTOR2(name, T)                                                                 \
    struct alignas(2 * sizeof(T)) name {                                                           \
        union {                                                                                    \
            struct {                                                                               \
                T x, y;                                                                            \
            };                                                                                     \
            T all __attribute__((vector_size(2 * sizeof(T))));                                     \
        };                                                                                         \
        name() = default;                                                                          \
        name(T x, T y) : x(x), y(y) {}                                                             \
        name(const name& other) : all(other.all) {}                                                \
        name& operator=(const name& other) {                                                       \
            all = other.all;                                                                       \
            return *this;                                                                          \
        }                                                                                          \
    };
#define SIMULATOR_VECTOR4(name, T)                                                                 \
    struct alignas(4 * sizeof(T)) name {                                                           \
        union {                                                                                    \
            struct {                                                                               \
                T x, y, z, w;                                                                      \
            };                                                                                     \
            T all __attribute__((vector_size(4 * sizeof(T))));                                     \
        };                                                                                         \
        name() = default;                                                                          \
        name(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}                                       \
        name(const name& other) : all(other.all) {}                                                \
        name& operator=(const name& other) {                                                       \
            all = other.all;                                                                       \
            return *this;                                                                          \
        }                                                                                          \
    };
#endif
SIMULATOR_VECTOR2(float2, float)
SIMULATOR_VECTOR4(float4, float)
SIMULATOR_VECTOR2(int2, int)
SIMULATOR_VECTOR4(int4, int)

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

template <typename A, typename B>
inline auto min(A a, B b) -> decltype(a + b) {
    return b < a ? b : a;
}
template <typename A, typename B>
inline auto max(A a, B b) -> decltype(a + b) {
    return a < b ? b : a;
}
inline float min(float a, float b) { return __builtin_fminf(a, b); } // the number, if one is NaN
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }

#ifndef SIMULATOR_CHECKED
#define SIMULATOR_COUNT_FMA
#else
namespace simulator {
extern const bool counting;
void count_fma();
} // namespace simulator
#define SIMULATOR_COUNT_FMA                                                                        \
    if (simulator::counting) simulator::count_fma()
#endif

__forceinline__ float fmaf(float a, float b, float c) {
    SIMULATOR_COUNT_FMA;
    return __builtin_fmaf(a, b, c);
}
__forceinline__ float fma(float a, float b, float c) {
    SIMULATOR_COUNT_FMA;
    return __builtin_fmaf(a, b, c);
}
__forceinline__ float __fmaf_rn(float a, float b, float c) {
    SIMULATOR_COUNT_FMA;
    return __builtin_fmaf(a, b, c);
}

template <typename T>
inline T __ldg(const T* address) {
    return *address;
}

template <typename T>
inline T __ldcg(const T* address) {
    return *address;
}

// Blocks run one after the other: each sees all that those before it have written.
inline void __threadfence() {}
inline int atomicAdd(int* address, int value) {
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED); // has a hook of its own
}

#ifdef SIMULATOR_RUNTIME
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
#else // constants, to a thread
extern const uint3 threadIdx, blockIdx;
extern const dim3 blockDim, gridDim;
#endif
constexpr int warpSize = 32;
using mbarrier_t = unsigned long long;

// ---- What runtime.cpp supplies ----

namespace simulator {

struct Place {
    const char* file;
    int line;
};

[[noreturn, gnu::cold, gnu::format(printf, 3, 4)]] void fail(Place place, const char* kind,
                                                             const char* format, ...);
void wait_at_barrier(Place place);
void wait_for_warp(unsigned mask, Place place);
void wait_at_named_barrier(int id, int threads, Place place);
void init(mbarrier_t* address, int arrivals, Place place);
void arrive(mbarrier_t* address, int bytes, Place place);
void wait_for_phase(mbarrier_t* address, unsigned parity, Place place);
void issue(float* to, const float* from, int valid, int width, bool any_size, Place place);
void issue_arrival(mbarrier_t* address, Place place);
void issue_bulk(float* to, const float* from, int bytes, mbarrier_t* address, Place place);
void commit();
void complete(unsigned pending);

extern const char* const signature; // of the kernel: its parameters' types
extern const bool checked;          // whether the kernel was compiled with hooks
extern char arguments[];            // 8 bytes for each parameter
void run_kernel();

// A parameter's type in one letter, as Python's struct module has them.
template <typename T>
constexpr char LETTER = static_cast<T>(0.5f) != 0 ? (sizeof(T) == 4 ? 'f' : 'd')
                        : sizeof(T) == 8          ? 'q'
                        : sizeof(T) == 4          ? 'i'
                                                  : '?';
template <typename T>
constexpr char LETTER<T*> = 'P';

template <typename T>
static T read_argument(const char*& at) {
    T value;
    memcpy(&value, at, sizeof value);
    at += 8;
    return value;
}

template <auto entry>
struct Kernel;

template <typename... Parameters, void (*entry)(Parameters...)>
struct Kernel<entry> {
    static constexpr char signature[] = {LETTER<Parameters>..., 0};

    struct Call {
        Call(Parameters... values) { entry(values...); }
    };
    static void run() {
        const char* at = arguments;
        Call{read_argument<Parameters>(at)...}; // braces: in this order
    }
};

} // namespace simulator

#ifdef SIMULATOR_CHECKED
#define SIMULATE(entry) SIMULATE_KERNEL(entry, true)
#else
#define SIMULATE(entry) SIMULATE_KERNEL(entry, false)
#endif
#define SIMULATE_KERNEL(entry, has_hooks)                                                          \
    const char* const simulator::signature = simulator::Kernel<entry>::signature;                  \
    const bool simulator::checked = has_hooks;                                                     \
    void simulator::run_kernel() { Kernel<entry>::run(); }

// ---- What kernels call ----

#ifdef SGEMM_DEBUG
#define DEVICE_ASSERT(condition) assert(condition)
#else
#define DEVICE_ASSERT(condition) ((void)0)
#endif

#undef assert
#define assert(condition)                                                                          \
    ((condition)                                                                                   \
         ? (void)0                                                                                 \
         : simulator::fail({__FILE__, __LINE__}, "assertion", "assertion failed: %s", #condition))

// The place of the call, in functions that kernels call.
#define SIMULATOR_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

[[noreturn]] inline void __trap(SIMULATOR_PLACE) { simulator::fail({file, line}, "trap", "trap"); }

__forceinline__ void __syncthreads(SIMULATOR_PLACE) { simulator::wait_at_barrier({file, line}); }

__forceinline__ void __syncwarp(unsigned mask = 0xffffffff, SIMULATOR_PLACE) {
    simulator::wait_for_warp(mask, {file, line});
}

__forceinline__ void named_barrier_sync(int id, int threads, SIMULATOR_PLACE) {
    simulator::wait_at_named_barrier(id, threads, {file, line});
}

__forceinline__ void mbarrier_init(mbarrier_t* bar, int arrivals, SIMULATOR_PLACE) {
    simulator::init(bar, arrivals, {file, line});
}

__forceinline__ void mbarrier_arrive(mbarrier_t* bar, SIMULATOR_PLACE) {
    simulator::arrive(bar, 0, {file, line});
}

__forceinline__ void mbarrier_arrive_expect_tx(mbarrier_t* bar, int bytes, SIMULATOR_PLACE) {
    simulator::arrive(bar, bytes, {file, line});
}

__forceinline__ void mbarrier_wait(mbarrier_t* bar, unsigned parity, SIMULATOR_PLACE) {
    simulator::wait_for_phase(bar, parity, {file, line});
}

__forceinline__ void store_float4(float* global, const float* values) {
    *reinterpret_cast<float4*>(global) = {values[0], values[1], values[2], values[3]};
}

template <int WIDTH>
__forceinline__ void copy_async(float* shared, const float* global, int valid, SIMULATOR_PLACE) {
    static_assert(WIDTH == 1 || WIDTH == 4, "cp.async here copies one float or a float4");
    // A number that the compiler does not know is told by the address, to a copy of another kind.
    simulator::issue(shared, global, valid, WIDTH, !__builtin_constant_p(valid), {file, line});
}

__forceinline__ void copy_async_commit() { simulator::commit(); }

template <int PENDING>
__forceinline__ void copy_async_wait() {
    simulator::complete(PENDING);
}

__forceinline__ void copy_async_arrive(mbarrier_t* bar, SIMULATOR_PLACE) {
    simulator::issue_arrival(bar, {file, line});
}

__forceinline__ void copy_bulk_async(float* shared, const float* global, int bytes, mbarrier_t* bar,
                                     SIMULATOR_PLACE) {
    simulator::issue_bulk(shared, global, bytes, bar, {file, line});
}

// What the threads of a warp pass to each other.
template <typename T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int lane, SIMULATOR_PLACE) {
    static T values[1024];
    values[threadIdx.x] = value;
    simulator::wait_for_warp(mask, {file, line});
    const T received = values[threadIdx.x / warpSize * warpSize + lane % warpSize];
    simulator::wait_for_warp(mask, {file, line});
    return received;
}

template <typename T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int lanes, SIMULATOR_PLACE) {
    return __shfl_sync(mask, value, static_cast<int>(threadIdx.x % warpSize) ^ lanes, file, line);
}

// An address is as good in one place as in another.
template <typename T>
struct SharedPointer {
    T* pointer;

    explicit SharedPointer(T* pointer) : pointer(pointer) {}
    T* operator+(int distance) const { return pointer + distance; }
};
inline int warp_uniform(int value) { return value; }

// How a GPU shares out registers among warps changes nothing here.
template <int N>
inline void set_max_registers_increase() {}
template <int N>
inline void set_max_registers_decrease() {}
