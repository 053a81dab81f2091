// Counts what a kernel asks of memory, as a GPU's warps would, by the place in its code.
//
// Threads run in order, so that a warp's 32 run one after the other. The n-th time that each of
// them comes to a place is one request of the warp.
#include "runtime.h"

#include <stdlib.h>

namespace simulator {
namespace counts {

constexpr unsigned SECTOR_BYTES = 32;
constexpr unsigned BANKS = 32; // of 4 bytes

enum Space { GLOBAL_LOAD, GLOBAL_STORE, SHARED_LOAD, SHARED_STORE, SPACES };

// What was counted for a place. Python's Count.
struct Count {
    uint64_t pc;
    uint64_t requests[SPACES], floats[SPACES];
    // of global memory, sectors; of shared memory, wavefronts; and how few it would be if the same
    // bytes lay side by side
    uint64_t units[SPACES], ideal[SPACES];
    uint64_t copies, barriers, fmas; // executed by threads
};

// A warp's request: for each lane the address of its first float, and in the two lowest bits how
// many more follow.
struct Request {
    uint64_t lanes[warpSize];
    uint32_t active;
};

// The requests of a warp from one place to one space.
struct Stream {
    Request* requests;
    unsigned count, capacity;
    unsigned done[warpSize]; // by each lane
};

static Count* counted;
static Stream (*streams)[SPACES];
static unsigned place_count, place_capacity;
static uint32_t* places; // by pc: index + 1
static unsigned current_warp;

[[gnu::noinline]] static void add_place(uint64_t pc) {
    if (place_count == place_capacity) {
        const unsigned larger = 2 * place_capacity + 64;
        counted = static_cast<Count*>(realloc(counted, larger * sizeof *counted));
        streams = static_cast<Stream(*)[SPACES]>(realloc(streams, larger * sizeof *streams));
        memset(streams + place_capacity, 0, (larger - place_capacity) * sizeof *streams);
        place_capacity = larger;
    }
    counted[place_count] = {};
    counted[place_count].pc = pc;
    places[pc] = ++place_count;
}

inline unsigned place_of(uint64_t pc) {
    if (!places[pc]) add_place(pc);
    return places[pc] - 1;
}

// The 4-byte words that lanes `first` to `last` ask for, in order and each once; returns how many.
static unsigned words_of(const Request& request, unsigned first, unsigned last, uint64_t* words) {
    uint64_t lanes[warpSize];
    unsigned count = 0;
    for (unsigned lane = first; lane < last; ++lane) {
        if (!(request.active >> lane & 1)) continue;
        const uint64_t its = request.lanes[lane];
        unsigned at = count++;
        for (; at > 0 && lanes[at - 1] > its; --at) lanes[at] = lanes[at - 1];
        lanes[at] = its;
    }
    unsigned found = 0;
    for (unsigned i = 0; i < count; ++i) {
        const uint64_t begin = lanes[i] / 4, end = begin + lanes[i] % 4 + 1;
        uint64_t word = found ? max(begin, words[found - 1] + 1) : begin;
        while (word < end) words[found++] = word++;
    }
    return found;
}

static unsigned sectors(const uint64_t* words, unsigned count) {
    constexpr unsigned WORDS = SECTOR_BYTES / 4;
    unsigned found = 0;
    for (unsigned i = 0; i < count; ++i)
        found += i == 0 || words[i] / WORDS != words[i - 1] / WORDS;
    return found;
}

// How many of these words the bank has that has most of them.
static unsigned most_in_a_bank(const uint64_t* words, unsigned count) {
    if (count == 0 || words[count - 1] - words[0] < count) return (count + BANKS - 1) / BANKS;
    unsigned most = 0, in_bank[BANKS] = {};
    for (unsigned i = 0; i < count; ++i) most = max(most, ++in_bank[words[i] % BANKS]);
    return most;
}

// Whether every active lane asks for the same as the lane whose number differs by `bit`, where
// that one is active.
static bool pairs_agree(const Request& request, unsigned bit) {
    for (unsigned lane = 0; lane < static_cast<unsigned>(warpSize); ++lane) {
        const unsigned other = lane ^ bit;
        if ((request.active >> lane & 1) && (request.active >> other & 1) &&
            request.lanes[lane] != request.lanes[other])
            return false;
    }
    return true;
}

// Wavefronts of a request for more than a float per lane. 16 lanes with two floats go together, or
// 8 with four; of loads twice as many, if the lanes of each pair ask for the same. In every group
// each bank serves one word at a time.
static unsigned wide_wavefronts(const Request& request, unsigned width, bool load) {
    unsigned together = width == 2 ? 16 : 8;
    if (load && (pairs_agree(request, 1) || pairs_agree(request, 2))) together *= 2;
    unsigned total = 0;
    for (unsigned first = 0; first < static_cast<unsigned>(warpSize); first += together) {
        uint64_t words[warpSize * 4];
        const unsigned count = words_of(request, first, first + together, words);
        total += most_in_a_bank(words, count);
    }
    return total;
}

static void count_request(Count& count, unsigned space, const Request& request) {
    uint64_t words[warpSize * 4];
    const unsigned different = words_of(request, 0, warpSize, words);
    unsigned width = 1;
    for (unsigned lane = 0; lane < static_cast<unsigned>(warpSize); ++lane)
        if (request.active >> lane & 1) {
            const auto its = static_cast<unsigned>(request.lanes[lane] % 4 + 1);
            width = max(width, its);
            count.floats[space] += its;
        }
    ++count.requests[space];
    if (space == GLOBAL_LOAD || space == GLOBAL_STORE) {
        count.units[space] += sectors(words, different);
        count.ideal[space] += (different * 4 + SECTOR_BYTES - 1) / SECTOR_BYTES;
    } else {
        count.units[space] += width == 1 ? most_in_a_bank(words, different)
                                         : wide_wavefronts(request, width, space == SHARED_LOAD);
        count.ideal[space] += (different + BANKS - 1) / BANKS;
    }
}

[[gnu::noinline]] static void add_request(Stream& stream) {
    if (stream.count == stream.capacity) {
        stream.capacity = 2 * stream.capacity + 16;
        stream.requests =
            static_cast<Request*>(realloc(stream.requests, stream.capacity * sizeof(Request)));
    }
    stream.requests[stream.count++].active = 0;
}

// Counts what the warp has asked for, and begins with the next one.
static void finish_warp() {
    for (unsigned place = 0; place < place_count; ++place)
        for (unsigned space = 0; space < SPACES; ++space) {
            Stream& stream = streams[place][space];
            if (stream.count == 0) continue;
            for (unsigned i = 0; i < stream.count; ++i)
                count_request(counted[place], space, stream.requests[i]);
            stream.count = 0;
            memset(stream.done, 0, sizeof stream.done);
        }
}

inline void record(unsigned place, Space space, const char* address, unsigned floats) {
    const unsigned warp = threadIdx.x / warpSize, lane = threadIdx.x % warpSize;
    if (warp != current_warp) {
        finish_warp();
        current_warp = warp;
    }
    Stream& stream = streams[place][space];
    const unsigned n = stream.done[lane]++;
    if (n >= stream.count) add_request(stream);
    Request& request = stream.requests[n];
    request.active |= 1u << lane;
    request.lanes[lane] = (reinterpret_cast<uint64_t>(address) & ~uint64_t{3}) | (floats - 1);
}

template <unsigned BYTES, bool WRITE>
inline void access(const char* address, uint64_t pc) {
    constexpr unsigned FLOATS = BYTES > 4 ? BYTES / 4 : 1;
    if (address >= shared_begin && address < shared_end)
        record(place_of(pc), WRITE ? SHARED_STORE : SHARED_LOAD, address, FLOATS);
    else if ((address < stacks_begin || address >= stacks_end) &&
             (address < library_begin || address >= library_end))
        record(place_of(pc), WRITE ? GLOBAL_STORE : GLOBAL_LOAD, address, FLOATS);
}

void copy(const float* to, const float* from, unsigned floats_read, unsigned floats_written,
          uint64_t pc) {
    const unsigned place = place_of(pc);
    ++counted[place].copies;
    // A bulk copy is the request of one lane for each float4.
    for (unsigned at = 0; at < floats_read; at += 4)
        record(place, GLOBAL_LOAD, reinterpret_cast<const char*>(from + at),
               min(4u, floats_read - at));
    for (unsigned at = 0; at < floats_written; at += 4)
        record(place, SHARED_STORE, reinterpret_cast<const char*>(to + at),
               min(4u, floats_written - at));
}

void barrier(uint64_t pc) {
    const unsigned place = place_of(pc); // may move the counts
    ++counted[place].barriers;
}

void fma(uint64_t pc) {
    const unsigned place = place_of(pc);
    ++counted[place].fmas;
}

void begin_launch() {
    const auto size = static_cast<size_t>(library_end - library_begin);
    if (!places) places = static_cast<uint32_t*>(calloc(size, sizeof *places));
    for (unsigned i = 0; i < place_count; ++i) {
        places[counted[i].pc] = 0;
        for (Stream& stream : streams[i]) {
            stream.count = 0;
            memset(stream.done, 0, sizeof stream.done);
        }
    }
    place_count = 0;
    current_warp = 0;
}

void begin_block() {
    finish_warp();
    current_warp = 0;
}

void end_launch() { finish_warp(); }

} // namespace counts
} // namespace simulator

extern "C" __attribute__((visibility("default"))) const simulator::counts::Count*
simulator_counts(uint64_t* count) {
    *count = simulator::counts::place_count;
    return simulator::counts::counted;
}
