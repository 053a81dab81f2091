// Counts what a kernel asks of memory, as a GPU's warps would, by the place in its code.
//
// Threads run in order, so that a warp's 32 run one after the other. The n-th time that each of
// them comes to a place is one request of the warp.
#include "runtime.h"

#include <stdlib.h>

namespace simulator {
namespace counts {

constexpr unsigned SECTOR_BYTES = 32;
constexpr unsigned LINE_BYTES = 128; // of the L1 cache, and what the banks hold side by side
constexpr unsigned BANKS = 32;       // of 4 bytes
constexpr unsigned LANES = 32;       // of a warp

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
    uint64_t lanes[LANES];
    uint32_t active;
};

// A warp's asynchronous copy: from where to where each lane copies one float or a float4, and which
// lanes read anything. The others write zeros.
struct CopyRequest {
    uint64_t from[LANES], to[LANES];
    uint32_t active, reading;
    unsigned floats; // that each lane writes, and all together read
    unsigned floats_read;
    bool any_size; // compiled for any number of valid floats
};

// The requests of a warp from one place to one space, or its copies.
template <typename R>
struct Stream {
    R* requests;
    unsigned count, capacity;
    unsigned done[LANES]; // by each lane

    // The one to which the lane's next access belongs.
    R& next(unsigned lane) {
        const unsigned n = done[lane]++;
        if (n >= count) add();
        return requests[n];
    }

    void clear() {
        count = 0;
        memset(done, 0, sizeof done);
    }

  private:
    [[gnu::noinline]] void add() {
        if (count == capacity) {
            capacity = 2 * capacity + 16;
            requests = static_cast<R*>(realloc(requests, capacity * sizeof(R)));
        }
        requests[count++] = {};
    }
};

struct Streams {
    Stream<Request> accesses[SPACES];
    Stream<CopyRequest> copies;
};

static Count* counted;
static Streams* streams;
static unsigned place_count, place_capacity;
static uint32_t* places; // by pc: index + 1
static unsigned current_warp;

[[gnu::noinline]] static void add_place(uint64_t pc) {
    if (place_count == place_capacity) {
        const unsigned larger = 2 * place_capacity + 64;
        counted = static_cast<Count*>(realloc(counted, larger * sizeof *counted));
        streams = static_cast<Streams*>(realloc(streams, larger * sizeof *streams));
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
    uint64_t lanes[LANES];
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
    for (unsigned lane = 0; lane < LANES; ++lane) {
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
    for (unsigned first = 0; first < LANES; first += together) {
        uint64_t words[LANES * 4];
        const unsigned count = words_of(request, first, first + together, words);
        total += most_in_a_bank(words, count);
    }
    return total;
}

static void count_request(Count& count, unsigned space, const Request& request) {
    uint64_t words[LANES * 4];
    const unsigned different = words_of(request, 0, LANES, words);
    unsigned width = 1;
    for (unsigned lane = 0; lane < LANES; ++lane)
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

// The banks of the floats that a lane reads or writes at an address.
inline uint32_t banks_of(uint64_t address, unsigned floats) {
    const uint32_t first = floats == 1 ? 1 : 0xf;
    return first << (address / 4 % BANKS);
}

// Passes that copies of some lanes take through the L1 cache, which holds global and shared memory
// in the same banks. A lane goes in one of its own if another one shares a bank with it, be it
// where they read or where they write.
static unsigned passes(const CopyRequest& copy, unsigned first, unsigned last) {
    unsigned most = 0;
    for (unsigned lane = first; lane < last; ++lane) {
        if (!(copy.active >> lane & 1)) continue;
        unsigned sharing = 0; // itself included
        for (unsigned other = first; other < last; ++other) {
            const bool both_read = copy.reading >> lane & copy.reading >> other & 1;
            const auto share = [&](const uint64_t* addresses) {
                return (banks_of(addresses[lane], copy.floats) &
                        banks_of(addresses[other], copy.floats)) != 0;
            };
            sharing +=
                (copy.active >> other & 1) && ((both_read && share(copy.from)) || share(copy.to));
        }
        most = max(most, sharing);
    }
    return most;
}

// A number for the way from a line of the L1 cache to a part of shared memory.
inline uint64_t way(uint64_t from, uint64_t to, unsigned part_bytes) {
    return from / LINE_BYTES << 32 | to % (1u << 30) / part_bytes;
}

// How many of these values there are if each counts once; those then come first.
static unsigned different(uint64_t* values, unsigned count) {
    unsigned found = 0;
    for (unsigned i = 0; i < count; ++i) {
        unsigned seen = 0;
        while (seen < found && values[seen] != values[i]) ++seen;
        if (seen == found) values[found++] = values[i];
    }
    return found;
}

// Wavefronts of copies that pass the L1 cache by. Each takes from one line what goes to one line of
// shared memory. Where a sector is read half, or its halves go to two sectors, first and second
// halves go apart.
static unsigned bypassing(const CopyRequest& copy) {
    uint64_t kinds[LANES];
    unsigned count = 0;
    for (unsigned lane = 0; lane < LANES; ++lane) {
        if (!(copy.reading >> lane & 1)) continue;
        const uint64_t from = copy.from[lane], to = copy.to[lane];
        bool whole = false;
        for (unsigned other = 0; other < LANES; ++other)
            whole |= (copy.reading >> other & 1) && copy.from[other] == (from ^ SECTOR_BYTES / 2) &&
                     copy.to[other] == (to ^ SECTOR_BYTES / 2);
        const uint64_t half = whole ? 2 : from / (SECTOR_BYTES / 2) % 2;
        kinds[count++] = way(from, to, LINE_BYTES) * 4 + half;
    }
    return different(kinds, count);
}

// As an H200 counts: sectors that pass the L1 cache by are counted for each sector of shared memory
// to which a line's go, and a copy of any size is one of zeros as well.
static void count_copy(Count& count, const CopyRequest& copy) {
    const bool by_float4s = copy.floats == 4;
    uint64_t sectors[LANES], sources[LANES];
    unsigned reading = 0, writing = 0;
    for (unsigned lane = 0; lane < LANES; ++lane) {
        writing += copy.active >> lane & 1;
        if (!(copy.reading >> lane & 1)) continue;
        const uint64_t from = copy.from[lane], to = copy.to[lane];
        sources[reading] = from;
        sectors[reading++] = by_float4s ? way(from, to, SECTOR_BYTES) : from / SECTOR_BYTES;
    }
    if (reading) {
        ++count.requests[GLOBAL_LOAD];
        count.floats[GLOBAL_LOAD] += copy.floats_read;
        count.units[GLOBAL_LOAD] += different(sectors, reading);
        const unsigned floats = min(copy.floats_read, different(sources, reading) * copy.floats);
        count.ideal[GLOBAL_LOAD] += (floats * 4 + SECTOR_BYTES - 1) / SECTOR_BYTES;
    }
    unsigned wavefronts = by_float4s ? bypassing(copy) : passes(copy, 0, LANES);
    if (by_float4s && copy.any_size)
        for (unsigned lane = 0; lane < LANES; lane += 8) wavefronts += passes(copy, lane, lane + 8);
    ++count.requests[SHARED_STORE];
    count.floats[SHARED_STORE] += writing * copy.floats;
    count.units[SHARED_STORE] += wavefronts;
    count.ideal[SHARED_STORE] += (writing * copy.floats + BANKS - 1) / BANKS;
}

// Counts what the warp has asked for, and begins with the next one.
static void finish_warp() {
    for (unsigned place = 0; place < place_count; ++place) {
        for (unsigned space = 0; space < SPACES; ++space) {
            Stream<Request>& stream = streams[place].accesses[space];
            if (stream.count == 0) continue;
            for (unsigned i = 0; i < stream.count; ++i)
                count_request(counted[place], space, stream.requests[i]);
            stream.clear();
        }
        Stream<CopyRequest>& copies = streams[place].copies;
        if (copies.count == 0) continue;
        for (unsigned i = 0; i < copies.count; ++i) count_copy(counted[place], copies.requests[i]);
        copies.clear();
    }
}

// The thread's lane. Its warp is the one that is counted from here on.
inline unsigned lane_of_warp() {
    const unsigned warp = threadIdx.x / LANES;
    if (warp != current_warp) {
        finish_warp();
        current_warp = warp;
    }
    return threadIdx.x % LANES;
}

inline void record(unsigned place, Space space, const char* address, unsigned floats) {
    const unsigned lane = lane_of_warp();
    Request& request = streams[place].accesses[space].next(lane);
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
          bool any_size, uint64_t pc) {
    const unsigned place = place_of(pc);
    ++counted[place].copies;
    const unsigned lane = lane_of_warp();
    CopyRequest& request = streams[place].copies.next(lane);
    request.from[lane] = reinterpret_cast<uint64_t>(from);
    request.to[lane] = reinterpret_cast<uint64_t>(to);
    request.active |= 1u << lane;
    if (floats_read) request.reading |= 1u << lane;
    request.floats = floats_written;
    request.floats_read += floats_read;
    request.any_size = any_size;
}

void bulk_copy(const float* to, const float* from, unsigned floats, uint64_t pc) {
    const unsigned place = place_of(pc);
    ++counted[place].copies;
    for (unsigned at = 0; at < floats; at += 4) { // the request of one lane for each float4
        record(place, GLOBAL_LOAD, reinterpret_cast<const char*>(from + at), min(4u, floats - at));
        record(place, SHARED_STORE, reinterpret_cast<const char*>(to + at), min(4u, floats - at));
    }
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
        for (Stream<Request>& stream : streams[i].accesses) stream.clear();
        streams[i].copies.clear();
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
