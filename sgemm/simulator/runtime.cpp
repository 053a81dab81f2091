// Runs a compiled kernel: its threads, the order that they run in, what they wait for, what
// asynchronous copies do and when. simulator.h describes the model.
#include "runtime.h"

#include <fenv.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simulator {

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

// ---- Stacks: each ends in a page that nobody may touch ----

constexpr size_t STACK_BYTES = 64 * 1024;
constexpr size_t GUARD_BYTES = 4096;
constexpr size_t STACK_STRIDE = STACK_BYTES + GUARD_BYTES;

// The top of a stack. They are an odd number of cache lines off page boundaries, and different
// ones, so that they do not compete for the same lines of the cache.
inline size_t used_bytes(unsigned fiber) { return STACK_BYTES - fiber % 12 * 5 * 64; }

inline bool is_guard(const char* address) {
    return address >= stacks_begin && address < stacks_end &&
           static_cast<size_t>(address - stacks_begin) % STACK_STRIDE < GUARD_BYTES;
}

// ---- Order ----

// SplitMix64.
struct Random {
    uint64_t state;
    bool fixed; // nothing is rearranged

    uint64_t draw() {
        uint64_t z = state += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }

    unsigned below(unsigned limit) { return static_cast<unsigned>((draw() >> 32) * limit >> 32); }

    // Leaves the order as it is, reverses it, or (half of the time) shuffles it.
    void rearrange(unsigned* order, unsigned count) {
        const uint64_t kind = fixed ? 0 : draw() % 4;
        if (kind == 1)
            for (unsigned i = 0; i < count / 2; ++i) swap(order[i], order[count - 1 - i]);
        if (kind < 2) return;
        for (unsigned left = count; left > 1; --left) swap(order[left - 1], order[below(left)]);
    }

    static void swap(unsigned& a, unsigned& b) {
        const unsigned kept = a;
        a = b;
        b = kept;
    }

    // Fills order with 0 ... count - 1, rearranged.
    void permute(unsigned* order, unsigned count) {
        for (unsigned i = 0; i < count; ++i) order[i] = i;
        rearrange(order, count);
    }
};

// ---- A launch: one at a time in this library ----

// An asynchronous copy in flight, or (`to` null) an arrival that follows the copies before it.
struct Copy {
    float* to;
    const float* from;
    int valid, width;
    mbarrier_t* mbarrier; // of an arrival
    unsigned group;       // how many groups the thread had committed before this
};

// The asynchronous copies of a thread, oldest first.
struct Copies {
    Copy* in_flight;
    unsigned count, capacity;
    unsigned groups; // committed so far
};

// A copy in flight that reports to an mbarrier: a bulk copy, or the arrival of `thread` that
// follows its own copies.
struct Flight {
    unsigned thread;
    unsigned bytes; // 0: not a bulk copy
    float* to;
    const float* from;
    mbarrier_t* mbarrier;
};

// What an mbarrier_t holds. Memory that nobody has initialised, all ones, has another mark.
struct Mbarrier {
    uint64_t expected : 20; // arrivals in a phase
    uint64_t pending : 20;  // arrivals that this phase lacks
    int64_t bytes : 21;     // that this phase still waits for
    uint64_t parity : 1;    // of this phase
    uint64_t mark : 2;
};
static_assert(sizeof(Mbarrier) == sizeof(mbarrier_t));
constexpr unsigned MBARRIER_MARK = 2;

// A barrier for some of a block's threads.
struct PartBarrier {
    unsigned threads, arrived, passed;
};

// What a suspended thread waits for.
struct Wait {
    enum { TURN, BLOCK, PART, PHASE, NEVER } what;
    Place place;
    const mbarrier_t* mbarrier;
    unsigned parity; // of the phase
    const PartBarrier* barrier;
    unsigned passed; // how often the barrier had been when the wait began
};

enum Landing { AT_ONCE, SOME_TIME, LATE };

Mode mode;
char arguments[8 * 32];
char *shared_begin, *shared_end;
char *stacks_begin, *stacks_end;
char *library_begin, *library_end;
const Operand* operands;
unsigned operand_count;
const SharedArray* shared_arrays;
unsigned shared_array_count;

static char error[1024]; // why the launch failed, or empty
static Context launcher;
static Context contexts[MAX_THREADS]; // of the threads that wait
static Wait waits[MAX_THREADS];
static Copies copies[MAX_THREADS];
static unsigned order[MAX_THREADS]; // in which threads run in this round
static unsigned runnable;           // how many of them
static unsigned started;            // how many of them have started or resumed
static unsigned waiting;            // how many threads wait at the block's barrier
static unsigned returned;           // how many threads have returned
static unsigned last_returned;
static unsigned round;  // 0 while threads start
static unsigned fibers; // stacks in use
static Place barrier;   // that the waiting threads have reached
static PartBarrier parts[NAMED_BARRIERS + WARPS];
static Flight* flights;
static unsigned flying, flight_capacity;
static Landing landing; // when copies that report to an mbarrier land, in this block
static Random random_order;

void end_launch() {
    if (!error[0]) strcpy(error, "a finding");
    Context abandoned;
    switch_context(abandoned, launcher);
    __builtin_unreachable();
}

void fail(Place place, const char* kind, const char* format, ...) {
    char text[900];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (mode == CHECK) {
        Finding& finding = checks::report(kind, 0, 0, nullptr, "%s", text);
        if (place.file) snprintf(finding.file, sizeof finding.file, "%s", place.file);
        finding.line = place.line;
    }
    int length = 0;
    if (place.file) length = snprintf(error, sizeof error, "%s:%d: ", place.file, place.line);
    snprintf(error + length, sizeof error - length, "block %u thread %u: %s", blockIdx.x,
             threadIdx.x, text);
    end_launch();
}

inline bool same(Place a, Place b) {
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

template <typename T>
static void make_room(T*& items, unsigned count, unsigned& capacity, Place place) {
    if (count < capacity) return;
    const unsigned needed = 2 * capacity + 16;
    void* larger = realloc(items, needed * sizeof(T));
    if (!larger) fail(place, "memory", "no memory left for the asynchronous copies in flight");
    items = static_cast<T*>(larger);
    capacity = needed; // not before: fail() ends the launch, and the next one goes by it
}

// ---- mbarriers, and the copies that report to them ----

static Mbarrier& mbarrier(mbarrier_t* address, Place place) {
    if (!is_shared(address, sizeof *address))
        fail(place, "mbarrier", "mbarrier at %p, which is not in shared memory",
             static_cast<void*>(address));
    auto& state = *reinterpret_cast<Mbarrier*>(address);
    if (state.mark != MBARRIER_MARK || state.expected == 0)
        fail(place, "mbarrier", "the mbarrier at %p is not initialised, or was overwritten",
             static_cast<void*>(address));
    return state;
}

inline bool has_completed(const mbarrier_t* address, unsigned parity) {
    return reinterpret_cast<const Mbarrier*>(address)->parity != parity;
}

inline void end_phase_if_complete(mbarrier_t* address) {
    auto& state = *reinterpret_cast<Mbarrier*>(address);
    if (state.pending != 0 || state.bytes != 0) return;
    state.pending = state.expected;
    state.parity = !state.parity;
    if (mode == CHECK) checks::complete_phase(address);
}

static void count_arrival(mbarrier_t* address, Place place) {
    Mbarrier& state = mbarrier(address, place);
    if (state.pending == 0)
        fail(place, "mbarrier", "one arrival more than the %u that the mbarrier expects in a phase",
             static_cast<unsigned>(state.expected));
    --state.pending;
    end_phase_if_complete(address);
}

// Completes a thread's `count` oldest copies; those before an arrival land for its mbarrier.
static void land_copies(unsigned thread, unsigned count) {
    Copies& its = copies[thread];
    for (unsigned done = 0; done < count; ++done) {
        const Copy& copy = its.in_flight[done];
        if (!copy.to) {
            count_arrival(copy.mbarrier, {});
            continue;
        }
        for (int i = 0; i < copy.width; ++i) copy.to[i] = i < copy.valid ? copy.from[i] : 0.0f;
        if (mode == CHECK) {
            const Copy* arrival = &copy;
            while (arrival < its.in_flight + count && arrival->to) ++arrival;
            const bool reports = arrival < its.in_flight + count;
            checks::land_copy(copy.to, static_cast<unsigned>(copy.width),
                              reports ? arrival->mbarrier : nullptr);
        }
    }
    its.count -= count;
    if (its.count) memmove(its.in_flight, its.in_flight + count, its.count * sizeof(Copy));
}

static void forget_flight(unsigned index) {
    --flying;
    memmove(flights + index, flights + index + 1, (flying - index) * sizeof(Flight));
}

static void land(unsigned index) {
    const Flight flight = flights[index];
    forget_flight(index);
    if (flight.bytes) {
        memcpy(flight.to, flight.from, flight.bytes);
        if (mode == CHECK)
            checks::land_copy(flight.to, flight.bytes / sizeof(float), flight.mbarrier);
        mbarrier(flight.mbarrier, {}).bytes -= flight.bytes;
        end_phase_if_complete(flight.mbarrier);
    } else {
        unsigned count = 1;
        for (const Copy* copy = copies[flight.thread].in_flight; copy->to; ++copy) ++count;
        land_copies(flight.thread, count);
    }
}

static void take_off(const Flight& flight, Place place) {
    make_room(flights, flying, flight_capacity, place);
    flights[flying++] = flight;
    if (landing == AT_ONCE || (landing == SOME_TIME && random_order.draw() % 4 == 0))
        land(flying - 1);
}

// ---- Turns ----

static void run_fiber();

inline bool is_ready(const Wait& wait) {
    switch (wait.what) {
    case Wait::TURN:
        return true;
    case Wait::PART:
        return wait.barrier->passed != wait.passed;
    case Wait::PHASE:
        return has_completed(wait.mbarrier, wait.parity);
    default:
        return false;
    }
}

// Ends a launch whose threads wait for ever.
[[noreturn, gnu::cold, gnu::noinline]] static void fail_stuck() {
    if (waiting + returned == blockDim.x)
        fail(barrier, "barrier",
             "%u of the block's %u threads wait at this barrier; thread %u has returned", waiting,
             blockDim.x, last_returned);
    char text[800];
    int length = 0;
    Place first = {};
    for (unsigned thread = 0; thread < blockDim.x; ++thread) {
        const Wait& wait = waits[thread];
        if (wait.what == Wait::NEVER) continue;
        unsigned alike = 0;
        bool listed = false;
        for (unsigned other = 0; other < blockDim.x; ++other) {
            if (waits[other].what != wait.what || !same(waits[other].place, wait.place)) continue;
            listed |= other < thread;
            ++alike;
        }
        if (listed || length > static_cast<int>(sizeof text) - 160) continue;
        if (!first.file) {
            first = wait.place;
            threadIdx.x = thread;
        }
        length += snprintf(text + length, sizeof text - length, "; %u at %s:%d", alike,
                           wait.place.file, wait.place.line);
        if (wait.what == Wait::PHASE) {
            const Mbarrier& state = *reinterpret_cast<const Mbarrier*>(wait.mbarrier);
            length +=
                snprintf(text + length, sizeof text - length,
                         " for an mbarrier's phase of parity %u, which lacks %u of %u "
                         "arrivals and %d bytes",
                         wait.parity, static_cast<unsigned>(state.pending),
                         static_cast<unsigned>(state.expected), static_cast<int>(state.bytes));
        } else if (wait.what == Wait::PART) {
            length += snprintf(text + length, sizeof text - length,
                               " for a barrier that %u of %u threads have reached",
                               wait.barrier->arrived, wait.barrier->threads);
        } else {
            length += snprintf(text + length, sizeof text - length, " for the block's barrier");
        }
    }
    fail(first, "deadlock", "deadlock, every thread waits or has returned (%u have)%s", returned,
         text);
}

// Once all threads wait or have returned: chooses who goes on. False where the block is finished.
static bool begin_round() {
    if (returned == blockDim.x) return false;
    ++round;
    started = 0;
    if (waiting == blockDim.x) {
        waiting = 0;
        runnable = blockDim.x;
        random_order.permute(order, runnable);
        if (mode == CHECK) checks::pass_block_barrier();
        return true;
    }
    if (landing == SOME_TIME)
        for (unsigned i = flying; i-- > 0;)
            if (i < flying && random_order.draw() % 4 == 0) land(i);
    const uint64_t drawn = random_order.draw();
    uint32_t awake = random_order.fixed || drawn & 1 ? ~0u : drawn >> 32; // warps; others lag
    for (;;) {
        runnable = 0;
        for (unsigned thread = 0; thread < blockDim.x; ++thread)
            if (awake >> thread / warpSize & 1 && is_ready(waits[thread]))
                order[runnable++] = thread;
        if (runnable) break;
        if (awake != ~0u)
            awake = ~0u;
        else if (flying)
            land(random_order.below(flying));
        else
            fail_stuck();
    }
    random_order.rearrange(order, runnable);
    return true;
}

// What runs after a thread has begun to wait or returned.
inline Context& next() {
    if (started == runnable && !begin_round()) return launcher;
    if (round == 0) { // nobody to resume yet
        static Context fresh;
        start_context(fresh, stacks_begin + fibers * STACK_STRIDE + GUARD_BYTES, used_bytes(fibers),
                      run_fiber);
        ++fibers;
        return fresh;
    }
    threadIdx.x = order[started++];
    return contexts[threadIdx.x];
}

// Starts threads, one after the other as long as they return without waiting.
static void run_fiber() {
    do {
        const unsigned thread = threadIdx.x = order[started++];
        copies[thread].count = copies[thread].groups = 0;
        run_kernel();
        waits[thread].what = Wait::NEVER;
        last_returned = thread;
        ++returned;
    } while (round == 0 && started < runnable);
    Context finished;
    switch_context(finished, next());
}

static void begin_block() {
    runnable = blockDim.x;
    random_order.permute(order, runnable);
    landing = random_order.fixed ? AT_ONCE : static_cast<Landing>(random_order.below(3));
    started = waiting = returned = round = fibers = flying = 0;
    memset(parts, 0, sizeof parts);
    if (mode == RUN) {
        memset(shared_begin, 0xff, static_cast<size_t>(shared_end - shared_begin)); // NaN
    } else {
        for (unsigned i = 0; i < shared_array_count; ++i)
            memset(shared_begin + shared_arrays[i].offset, 0xff,
                   static_cast<size_t>(shared_arrays[i].bytes));
        mode == CHECK ? checks::begin_block() : counts::begin_block();
    }
}

inline void suspend() {
    Context& mine = contexts[threadIdx.x]; // next() changes threadIdx
    switch_context(mine, next());
}

inline void wait_for(const Wait& wait) {
    waits[threadIdx.x] = wait;
    suspend();
}

void wait_at_barrier(Place place) {
    if (mode == COUNT) counts::barrier(site(__builtin_return_address(0)));
    if (waiting++ == 0)
        barrier = place;
    else if (!same(place, barrier))
        fail(place, "barrier", "waits at this barrier, and others of its block at %s:%d",
             barrier.file, barrier.line);
    Wait& wait = waits[threadIdx.x];
    wait.what = Wait::BLOCK;
    wait.place = place;
    suspend();
}

static void wait_at(unsigned part, unsigned threads, Place place) {
    PartBarrier& its = parts[part];
    if (its.arrived == 0)
        its.threads = threads;
    else if (its.threads != threads)
        fail(place, "barrier", "waits at this barrier with %u threads, and others with %u", threads,
             its.threads);
    const unsigned passed = its.passed;
    if (mode == CHECK) checks::reach_part_barrier(part);
    if (++its.arrived == threads) {
        its.arrived = 0;
        ++its.passed;
        if (mode == CHECK) checks::complete_part_barrier(part);
    }
    wait_for({Wait::PART, place, nullptr, 0, &its, passed});
    if (mode == CHECK) checks::leave_part_barrier(part);
}

void wait_for_warp(unsigned mask, Place place) {
    const unsigned warp = threadIdx.x / warpSize;
    const unsigned lanes = min(blockDim.x - warp * warpSize, static_cast<unsigned>(warpSize));
    if (lanes < static_cast<unsigned>(warpSize)) mask &= (1u << lanes) - 1;
    if (!(mask >> threadIdx.x % warpSize & 1))
        fail(place, "barrier", "waits for the lanes %#x of its warp, and is none of them", mask);
    wait_at(NAMED_BARRIERS + warp, static_cast<unsigned>(__builtin_popcount(mask)), place);
}

void wait_at_named_barrier(int id, int threads, Place place) {
    if (id < 1 || id >= static_cast<int>(NAMED_BARRIERS) || threads < 1 || threads % warpSize ||
        static_cast<unsigned>(threads) > blockDim.x)
        fail(place, "barrier",
             "barrier %d for %d threads: a named barrier is 1 to 15, for whole warps of the block",
             id, threads);
    if (mode == COUNT) counts::barrier(site(__builtin_return_address(0)));
    wait_at(static_cast<unsigned>(id), static_cast<unsigned>(threads), place);
}

void init(mbarrier_t* address, int arrivals, Place place) {
    if (!is_shared(address, sizeof *address))
        fail(place, "mbarrier", "mbarrier at %p, which is not in shared memory",
             static_cast<void*>(address));
    if (arrivals < 1 || arrivals >= 1 << 20)
        fail(place, "mbarrier", "an mbarrier cannot expect %d arrivals", arrivals);
    const auto expected = static_cast<uint64_t>(arrivals);
    const Mbarrier fresh = {expected, expected, 0, 0, MBARRIER_MARK};
    memcpy(address, &fresh, sizeof fresh);
    if (mode == CHECK) checks::init_mbarrier(address, site(__builtin_return_address(0)));
}

// A thread that has arrived may lose its turn, so that who waited for it may overtake it.
void arrive(mbarrier_t* address, int bytes, Place place) {
    Mbarrier& state = mbarrier(address, place);
    if (mode == CHECK) {
        checks::use_mbarrier(address, site(__builtin_return_address(0)));
        checks::arrive(address);
    }
    state.bytes += bytes;
    count_arrival(address, place);
    if (!random_order.fixed && random_order.draw() % 2)
        wait_for({Wait::TURN, place, nullptr, 0, nullptr, 0});
}

void wait_for_phase(mbarrier_t* address, unsigned parity, Place place) {
    mbarrier(address, place);
    if (parity > 1) fail(place, "mbarrier", "parity %u: a phase has parity 0 or 1", parity);
    if (mode == CHECK) checks::use_mbarrier(address, site(__builtin_return_address(0)));
    if (!has_completed(address, parity))
        wait_for({Wait::PHASE, place, address, parity, nullptr, 0});
    if (mode == CHECK) checks::pass_phase(address);
}

// ---- Asynchronous copies ----

static void check_shared(const float* target, size_t bytes, Place place) {
    if (!is_shared(target, bytes))
        fail(place, "out of bounds", "asynchronous copy to %p, which is not in shared memory",
             static_cast<const void*>(target));
}

static void enqueue(const Copy& copy, Place place) {
    Copies& mine = copies[threadIdx.x];
    make_room(mine.in_flight, mine.count, mine.capacity, place);
    mine.in_flight[mine.count] = copy;
    mine.in_flight[mine.count++].group = mine.groups;
}

void issue(float* to, const float* from, int valid, int width, bool any_size, Place place) {
    const size_t bytes = static_cast<size_t>(width) * sizeof(float);
    check_shared(to, bytes, place);
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes)
        fail(place, "misaligned", "asynchronous copy of %d bytes from %p to %p: misaligned",
             static_cast<int>(bytes), static_cast<const void*>(from), static_cast<void*>(to));
    if (valid < 0 || valid > width)
        fail(place, "out of bounds", "asynchronous copy of %d of %d floats", valid, width);
    const uint64_t pc = site(__builtin_return_address(0));
    const auto read = static_cast<unsigned>(valid), written = static_cast<unsigned>(width);
    if (mode == CHECK)
        checks::issue_copy(to, from, read, written, pc);
    else if (mode == COUNT)
        counts::copy(to, from, read, written, any_size, pc);
    memset(to, 0xff, bytes); // NaN
    enqueue({to, from, valid, width, nullptr, 0}, place);
}

void issue_arrival(mbarrier_t* address, Place place) {
    mbarrier(address, place);
    if (mode == CHECK) checks::use_mbarrier(address, site(__builtin_return_address(0)));
    enqueue({nullptr, nullptr, 0, 0, address, 0}, place);
    take_off({threadIdx.x, 0, nullptr, nullptr, address}, place);
}

void issue_bulk(float* to, const float* from, int bytes, mbarrier_t* address, Place place) {
    if (bytes < 16) fail(place, "out of bounds", "bulk copy of %d bytes", bytes);
    const auto size = static_cast<unsigned>(bytes);
    check_shared(to, size, place);
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | size) % 16)
        fail(place, "misaligned",
             "bulk copy of %u bytes from %p to %p: all must be multiples of 16", size,
             static_cast<const void*>(from), static_cast<void*>(to));
    mbarrier(address, place);
    const uint64_t pc = site(__builtin_return_address(0));
    const auto floats = static_cast<unsigned>(size / sizeof(float));
    if (mode == CHECK) {
        checks::use_mbarrier(address, pc);
        checks::issue_copy(to, from, floats, floats, pc);
    } else if (mode == COUNT) {
        counts::bulk_copy(to, from, floats, pc);
    }
    memset(to, 0xff, size); // NaN
    take_off({threadIdx.x, size, to, from, address}, place);
}

void commit() { ++copies[threadIdx.x].groups; }

// Completes this thread's committed groups but the newest `pending`.
void complete(unsigned pending) {
    const Copies& mine = copies[threadIdx.x];
    unsigned done = 0;
    for (; done < mine.count; ++done) {
        const Copy& copy = mine.in_flight[done];
        if (copy.group + pending >= mine.groups) break;
        if (copy.to) continue;
        unsigned flight = 0; // the arrival happens here
        while (flights[flight].bytes || flights[flight].thread != threadIdx.x) ++flight;
        forget_flight(flight);
    }
    land_copies(threadIdx.x, done);
}

// ---- Invalid addresses ----

static volatile bool running; // a kernel, on the thread `runner`
static pthread_t runner;
static const int FAULTS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
static struct sigaction handled_before[NSIG];

static void handle_fault(int signal, siginfo_t* information, void* machine) {
    if (running && pthread_equal(runner, pthread_self())) {
        if (signal == SIGFPE) fail({}, "trap", "integer division by zero");
        if (signal == SIGILL) fail({}, "trap", "trap");
        if (is_guard(static_cast<const char*>(information->si_addr)))
            fail({}, "stack", "the kernel's variables do not fit a stack of %zu KiB",
                 STACK_BYTES / 1024);
        fail({}, "out of bounds",
             "invalid or misaligned access to global or shared memory, address %p",
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
    static bool handled;
    if (handled) return;
    handled = true;
    struct sigaction handler = {};
    handler.sa_sigaction = handle_fault;
    handler.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK; // NODEFER: a handler may not return
    for (int signal : FAULTS) sigaction(signal, &handler, &handled_before[signal]);
}

// ---- Entry ----

// Shared memory of this OS thread: the thread-local variables of the library that holds this code.
static thread_local volatile char in_shared_memory;

static int find_memory(dl_phdr_info* library, size_t, void*) {
    const char* tls = static_cast<const char*>(library->dlpi_tls_data);
    bool is_this = false;
    const char* end = nullptr;
    for (int i = 0; tls && i < library->dlpi_phnum; ++i) {
        const auto& segment = library->dlpi_phdr[i];
        const auto* wanted = const_cast<const char*>(&in_shared_memory);
        if (segment.p_type == PT_LOAD)
            end = reinterpret_cast<const char*>(library->dlpi_addr + segment.p_vaddr +
                                                segment.p_memsz);
        if (segment.p_type == PT_TLS && wanted >= tls && wanted < tls + segment.p_memsz) {
            shared_begin = const_cast<char*>(tls);
            shared_end = shared_begin + segment.p_memsz;
            is_this = true;
        }
    }
    if (!is_this) return 0;
    library_begin = reinterpret_cast<char*>(library->dlpi_addr);
    library_end = const_cast<char*>(end);
    return 1;
}

static const char* run(unsigned grid, unsigned threads, uint64_t seed) {
    auto* blocks = static_cast<unsigned*>(malloc(grid * sizeof(unsigned)));
    if (!blocks) return "no memory left for the order of the blocks";
    static char handler_stack[64 * 1024]; // a fiber's own may be what has overflowed
    stack_t handler = {}, handler_before;
    handler.ss_sp = handler_stack;
    handler.ss_size = sizeof handler_stack;
    sigaltstack(&handler, &handler_before);
    fenv_t environment; // the caller's: it may flush subnormals to zero
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    runner = pthread_self();
    gridDim.x = grid;
    blockDim.x = threads;
    Random random_blocks{seed, mode == COUNT};
    random_blocks.permute(blocks, grid);
    const uint64_t block_seed = random_blocks.draw();
    for (unsigned i = 0; i < grid && !error[0]; ++i) {
        blockIdx.x = blocks[i];
        random_order = {block_seed + blockIdx.x, mode == COUNT};
        begin_block();
        Context& first = next();
        running = true;
        switch_context(launcher, first);
        running = false;
    }
    fesetenv(&environment);
    sigaltstack(&handler_before, nullptr);
    free(blocks);
    return error[0] ? error : nullptr;
}

} // namespace simulator

// ---- What Python calls ----

#define EXPORT extern "C" __attribute__((visibility("default")))

// Python's Launch: a request to run the kernel.
struct Launch {
    uint32_t grid, threads;
    uint64_t seed;
    const char* arguments; // 8 bytes for each
    uint64_t argument_bytes;
    char* stacks;                        // from simulator_new_stacks()
    uint32_t mode, tile_rows, tile_cols; // the last two 0 where the result has no tiles
    uint32_t operand_count;
    const simulator::Operand* operands;
    const simulator::SharedArray* shared_arrays;
    uint64_t shared_array_count;
};

EXPORT const char* simulator_signature() { return simulator::signature; }

// Memory for the stacks of a block's threads, for any library and one launch at a time.
EXPORT char* simulator_new_stacks() {
    using namespace simulator;
    void* memory = mmap(nullptr, MAX_THREADS * STACK_STRIDE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    auto* stacks = static_cast<char*>(memory);
    for (unsigned i = 0; i < MAX_THREADS; ++i)
        mprotect(stacks + i * STACK_STRIDE, GUARD_BYTES, PROT_NONE);
    return stacks;
}

EXPORT const char* simulator_launch(const Launch* launch) {
    using namespace simulator;
    error[0] = 0;
    if (launch->argument_bytes > sizeof arguments) return "a kernel here has at most 32 parameters";
    memcpy(arguments, launch->arguments, launch->argument_bytes);
    mode = static_cast<Mode>(launch->mode);
    counting = mode == COUNT;
    operands = launch->operands;
    operand_count = launch->operand_count;
    shared_arrays = launch->shared_arrays;
    shared_array_count = static_cast<unsigned>(launch->shared_array_count);
    stacks_begin = launch->stacks;
    stacks_end = stacks_begin + MAX_THREADS * STACK_STRIDE;
    handle_faults();
    in_shared_memory = 0; // allocates it
    dl_iterate_phdr(find_memory, nullptr);
    if (mode == CHECK) checks::begin_launch(launch->tile_rows, launch->tile_cols);
    if (mode == COUNT) counts::begin_launch();
    const char* failure = run(launch->grid, launch->threads, launch->seed);
    if (mode == CHECK && !failure) checks::end_launch();
    if (mode == COUNT) counts::end_launch();
    return failure;
}
