// Runs a CUDA kernel on the CPU: what nvcc's language and portable.cuh's GPU half supply, in C++.
//
// The model. Blocks run one after the other, and so do the threads of a block, each until it
// reaches a barrier or returns. A thread that waits is a fiber: its stack stays, and the next
// thread runs. Once all wait, the next interval between two barriers begins. The seed decides the
// order of the blocks, and the order of the threads anew in every interval of every block.
//
// What a GPU leaves undefined goes wrong here, so that it shows: shared memory holds NaN when a
// block starts; an asynchronous copy leaves NaN in its target at once and brings the data, read
// from the source only then, at the wait that covers its group; a barrier that only some of the
// block's threads reach ends the launch with an error, and so does an invalid address.
#pragma once

#include <fenv.h>
#include <link.h> // no <math.h>: it has global functions named y0, j1, gamma
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

// ---- The language ----

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
// A library's thread-local variables are one range of memory, which the simulator can find.
#define __shared__ static thread_local
// C++ has no place for alignas between "static" and the type, where CUDA has one.
#define alignas(bytes) __attribute__((aligned(bytes)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define UNROLL // left to the compiler: unrolled completely, kernels compile and run more slowly

using uint = unsigned int;

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) float2 {
    float x, y;
};
struct float3 {
    float x, y, z;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};

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
inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

template <typename T>
inline T __ldg(const T* address) {
    return *address;
}

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace simulator {

constexpr unsigned MAX_THREADS = 1024; // of a block

struct Place {
    const char* file;
    int line;
};

// ---- Fibers: a context is all that a suspended thread needs to go on ----

#if defined(__x86_64__) || defined(__aarch64__)

struct Context {
    void* stack_pointer;
};

// Saves the registers that a call must preserve on this stack, and takes them from the other one.
extern "C" __attribute__((visibility("hidden"))) void simulator_switch(Context* from, Context* to);

#ifdef __x86_64__
asm(R"(
    .pushsection .text
    .hidden simulator_switch
    .type simulator_switch, @function
simulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size simulator_switch, . - simulator_switch
    .popsection
)");
constexpr int SAVED_WORDS = 8; // six registers, the return address, and that address's own
constexpr int RETURN_WORD = 6;
#else
asm(R"(
    .pushsection .text
    .hidden simulator_switch
    .type simulator_switch, %function
simulator_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    ldr x9, [x1]
    mov sp, x9
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size simulator_switch, . - simulator_switch
    .popsection
)");
constexpr int SAVED_WORDS = 20;
constexpr int RETURN_WORD = 11;
#endif

inline void switch_context(Context& from, Context& to) { simulator_switch(&from, &to); }

inline void start_context(Context& context, char* stack, size_t size, void (*run)()) {
    const uintptr_t top = reinterpret_cast<uintptr_t>(stack + size) / 16 * 16;
    auto* saved = reinterpret_cast<uintptr_t*>(top) - SAVED_WORDS;
    memset(saved, 0, SAVED_WORDS * sizeof *saved);
    saved[RETURN_WORD] = reinterpret_cast<uintptr_t>(run);
    context.stack_pointer = saved;
}

#else

using Context = ucontext_t;

inline void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }

inline void start_context(Context& context, char* stack, size_t size, void (*run)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = size;
    context.uc_link = nullptr;
    makecontext(&context, run, 0);
}

#endif

constexpr size_t STACK_BYTES = 64 * 1024;
#ifdef __clang__ // a kernel whose variables may not fit does not compile
#pragma GCC diagnostic error "-Wframe-larger-than"
#else
#pragma GCC diagnostic error "-Wframe-larger-than=32768"
#endif
// The odd number of cache lines between stacks keeps their tops from competing for the same ones.
constexpr size_t STACK_STRIDE = STACK_BYTES + 5 * 64;

// ---- Order ----

// SplitMix64.
struct Random {
    uint64_t state;

    uint64_t draw() {
        uint64_t z = state += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }

    // Fills order with 0 ... count - 1: forward, in reverse, or (half of the time) shuffled.
    void permute(unsigned* order, unsigned count) {
        const uint64_t kind = draw() % 4;
        for (unsigned i = 0; i < count; ++i) order[i] = kind == 1 ? count - 1 - i : i;
        if (kind < 2) return;
        for (unsigned left = count; left > 1; --left) {
            const unsigned chosen = static_cast<unsigned>((draw() >> 32) * left >> 32);
            const unsigned last = order[left - 1];
            order[left - 1] = order[chosen];
            order[chosen] = last;
        }
    }
};

// ---- A launch: one at a time in this library ----

// An asynchronous copy in flight.
struct Copy {
    float* to;
    const float* from;
    int valid, width;
    unsigned group; // how many groups the thread had committed before this copy's
};

// The asynchronous copies of a thread, oldest first.
struct Copies {
    Copy* in_flight;
    unsigned count, capacity;
    unsigned groups; // committed so far
};

static char* stacks;
static char error[1024]; // why the launch failed, or empty
static void (*run_kernel)();
static char *shared_begin, *shared_end;

static Context launcher;
static Context contexts[MAX_THREADS]; // of the threads that wait
static Copies copies[MAX_THREADS];
static unsigned order[MAX_THREADS]; // in which threads run in this interval
static unsigned started;            // how many of them have started or resumed
static unsigned waiting;            // how many wait at the barrier
static unsigned returned;           // the last thread that has returned
static unsigned interval;           // barriers passed
static unsigned fibers;             // stacks in use
static Place barrier;               // that the waiting threads have reached
static Random random_order;

// Ends the launch. What the abandoned fibers' stacks hold needs no clean-up.
[[noreturn, gnu::cold, gnu::noinline, gnu::format(printf, 2, 3)]] static void
fail(Place place, const char* format, ...) {
    int length = 0;
    if (place.file) length = snprintf(error, sizeof error, "%s:%d: ", place.file, place.line);
    length += snprintf(error + length, sizeof error - length, "block %u thread %u: ", blockIdx.x,
                       threadIdx.x);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error + length, sizeof error - length, format, arguments);
    va_end(arguments);
    Context abandoned;
    switch_context(abandoned, launcher);
    __builtin_unreachable();
}

static void run_fiber();

// What runs after a thread has reached a barrier or returned.
inline Context& next() {
    if (started == blockDim.x) {
        if (waiting == 0) return launcher;
        if (waiting < blockDim.x)
            fail(barrier,
                 "%u of the block's %u threads wait at this barrier; thread %u has returned",
                 waiting, blockDim.x, returned);
        waiting = started = 0;
        ++interval;
        random_order.permute(order, blockDim.x);
    }
    if (interval == 0) { // nobody to resume yet
        static Context fresh;
        start_context(fresh, stacks + fibers++ * STACK_STRIDE, STACK_BYTES, run_fiber);
        return fresh;
    }
    threadIdx.x = order[started++];
    return contexts[threadIdx.x];
}

// Starts threads, one after the other as long as they return without a barrier.
static void run_fiber() {
    do {
        const unsigned thread = threadIdx.x = order[started++];
        copies[thread].count = copies[thread].groups = 0;
        run_kernel();
        returned = thread;
    } while (interval == 0 && started < blockDim.x);
    Context finished;
    switch_context(finished, next());
}

[[gnu::noinline]] static void wait_at_barrier(Place place) {
    if (waiting++ == 0)
        barrier = place;
    else if (place.line != barrier.line ||
             (place.file != barrier.file && strcmp(place.file, barrier.file) != 0))
        fail(place, "waits at this barrier, and others of its block at %s:%d", barrier.file,
             barrier.line);
    Context& mine = contexts[threadIdx.x]; // next() changes threadIdx
    switch_context(mine, next());
}

inline void issue(const Copy& copy, Place place) {
    const size_t bytes = copy.width * sizeof(float);
    auto* to = reinterpret_cast<char*>(copy.to);
    if (to < shared_begin || to + bytes > shared_end)
        fail(place, "asynchronous copy to %p, which is not in shared memory", copy.to);
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(copy.from)) % bytes)
        fail(place, "asynchronous copy of %d bytes from %p to %p: misaligned",
             static_cast<int>(bytes), copy.from, copy.to);
    if (copy.valid < 0 || copy.valid > copy.width)
        fail(place, "asynchronous copy of %d of %d floats", copy.valid, copy.width);
    memset(to, 0xff, bytes); // NaN

    Copies& mine = copies[threadIdx.x];
    if (mine.count == mine.capacity) {
        const unsigned capacity = 2 * mine.capacity + 16;
        void* larger = realloc(mine.in_flight, capacity * sizeof(Copy));
        if (!larger) fail(place, "no memory left for the asynchronous copies in flight");
        mine.in_flight = static_cast<Copy*>(larger);
        mine.capacity = capacity;
    }
    mine.in_flight[mine.count] = copy;
    mine.in_flight[mine.count++].group = mine.groups;
}

// Completes this thread's committed groups but the newest `pending`.
inline void complete(unsigned pending) {
    Copies& mine = copies[threadIdx.x];
    unsigned done = 0;
    for (; done < mine.count; ++done) {
        const Copy& copy = mine.in_flight[done];
        if (copy.group + pending >= mine.groups) break;
        for (int i = 0; i < copy.width; ++i) copy.to[i] = i < copy.valid ? copy.from[i] : 0.0f;
    }
    mine.count -= done;
    if (mine.count) memmove(mine.in_flight, mine.in_flight + done, mine.count * sizeof(Copy));
}

// ---- Invalid addresses ----

static volatile bool running; // a kernel, on the thread `runner`
static pthread_t runner;
static const int FAULTS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
static struct sigaction handled_before[NSIG];

static void handle_fault(int signal, siginfo_t* information, void* machine) {
    if (running && pthread_equal(runner, pthread_self())) {
        if (signal == SIGFPE) fail({}, "integer division by zero");
        if (signal == SIGILL) fail({}, "trap");
        fail({}, "invalid or misaligned access to global or shared memory, address %p",
             information->si_addr);
    }
    const struct sigaction& before = handled_before[signal];
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(signal, information, machine);
    else if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN)
        sigaction(signal, &before, nullptr); // and the fault repeats itself
    else
        before.sa_handler(signal);
}

static void handle_faults() {
    struct sigaction handler = {};
    handler.sa_sigaction = handle_fault;
    handler.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK; // NODEFER: a handler may not return
    for (int signal : FAULTS) sigaction(signal, &handler, &handled_before[signal]);
}

// ---- Entry ----

// Shared memory of this OS thread: the thread-local variables of the library that holds this code.
static thread_local volatile char in_shared_memory;

static int find_shared_memory(dl_phdr_info* library, size_t, void*) {
    const char* tls = static_cast<const char*>(library->dlpi_tls_data);
    for (int i = 0; tls && i < library->dlpi_phnum; ++i) {
        const auto& segment = library->dlpi_phdr[i];
        const auto* wanted = const_cast<const char*>(&in_shared_memory);
        if (segment.p_type == PT_TLS && wanted >= tls && wanted < tls + segment.p_memsz) {
            shared_begin = const_cast<char*>(tls);
            shared_end = shared_begin + segment.p_memsz;
            return 1;
        }
    }
    return 0;
}

static const char* run(unsigned grid, unsigned threads, uint64_t seed) {
    error[0] = 0;
    if (!stacks) { // the first launch
        void* memory = mmap(nullptr, MAX_THREADS * STACK_STRIDE, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return "no memory left for the threads' stacks";
        stacks = static_cast<char*>(memory);
        handle_faults();
    }
    auto* blocks = static_cast<unsigned*>(malloc(grid * sizeof(unsigned)));
    if (!blocks) return "no memory left for the order of the blocks";
    in_shared_memory = 0; // allocates it
    dl_iterate_phdr(find_shared_memory, nullptr);

    fenv_t environment; // the caller's: it may flush subnormals to zero
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    runner = pthread_self();
    gridDim.x = grid;
    blockDim.x = threads;
    Random random_blocks{seed};
    random_blocks.permute(blocks, grid);
    const uint64_t block_seed = random_blocks.draw();
    for (unsigned i = 0; i < grid && !error[0]; ++i) {
        blockIdx.x = blocks[i];
        random_order.state = block_seed + blockIdx.x;
        random_order.permute(order, threads);
        memset(shared_begin, 0xff, shared_end - shared_begin); // NaN
        started = waiting = interval = fibers = 0;
        Context& first = next();
        running = true;
        switch_context(launcher, first);
        running = false;
    }
    fesetenv(&environment);
    free(blocks);
    return error[0] ? error : nullptr;
}

// A parameter's type in one letter, as Python's struct module has them.
template <typename T>
constexpr char LETTER = static_cast<T>(0.5f) != 0 ? (sizeof(T) == 4 ? 'f' : 'd')
                        : sizeof(T) == 8          ? 'q'
                        : sizeof(T) == 4          ? 'i'
                                                  : '?';
template <typename T>
constexpr char LETTER<T*> = 'P';

static const char* arguments; // 8 bytes for each parameter

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

// The two functions that Python calls.
#define SIMULATE(entry)                                                                            \
    extern "C" __attribute__((visibility("default"))) const char* simulator_signature() {          \
        return simulator::Kernel<entry>::signature;                                                \
    }                                                                                              \
    extern "C" __attribute__((visibility("default"))) const char* simulator_launch(                \
        unsigned grid, unsigned threads, uint64_t seed, const char* arguments) {                   \
        simulator::arguments = arguments;                                                          \
        simulator::run_kernel = simulator::Kernel<entry>::run;                                     \
        return simulator::run(grid, threads, seed);                                                \
    }

// ---- What kernels call ----

#ifdef SGEMM_DEBUG
#define DEVICE_ASSERT(condition) assert(condition)
#else
#define DEVICE_ASSERT(condition) ((void)0)
#endif

#undef assert
#define assert(condition)                                                                          \
    ((condition) ? (void)0                                                                         \
                 : simulator::fail({__FILE__, __LINE__}, "assertion failed: %s", #condition))

[[noreturn]] inline void __trap(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    simulator::fail({file, line}, "trap");
}

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    simulator::wait_at_barrier({file, line});
}

template <int WIDTH>
inline void copy_async(float* shared, const float* global, int valid,
                       const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    static_assert(WIDTH == 1 || WIDTH == 4, "cp.async here copies one float or a float4");
    simulator::issue({shared, global, valid, WIDTH, 0}, {file, line});
}

inline void copy_async_commit() { ++simulator::copies[threadIdx.x].groups; }

template <int PENDING>
inline void copy_async_wait() {
    simulator::complete(PENDING);
}
