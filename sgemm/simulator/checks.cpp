// Looks at every access to memory, and at all that orders threads, for what a kernel must not do.
//
// Each 4 bytes of shared memory remember who wrote them last and who has read them since. Two
// accesses by different threads, one of them a write, must be ordered: by the block's barrier, or
// by named barriers, warps and mbarriers, for which vector clocks are kept. What an asynchronous
// copy writes belongs to nobody until it lands; one that reports to an mbarrier then belongs to
// the mbarrier, and to who has waited for the phase. The verdict does not depend on the order in
// which threads happen to run.
#include "runtime.h"

#include <stdarg.h>
#include <stdlib.h>

namespace simulator {
namespace checks {

constexpr unsigned MAX_FINDINGS = 64;
constexpr unsigned MAX_MBARRIERS = 128;
constexpr unsigned AGENTS = MAX_THREADS + MAX_MBARRIERS; // who may have written: a mbarrier, too
constexpr unsigned PARTS = NAMED_BARRIERS + WARPS;
constexpr uint16_t SEVERAL = 0xffff; // readers

static Finding findings[MAX_FINDINGS];
static unsigned finding_count;

// ---- Findings ----

Finding& report(const char* kind, uint64_t pc, uint64_t other_pc, const void* address,
                const char* format, ...) {
    for (unsigned i = 0; pc && i < finding_count; ++i)
        if (findings[i].pc == pc && strcmp(findings[i].kind, kind) == 0) {
            ++findings[i].times;
            return findings[i];
        }
    const bool has_room = finding_count < MAX_FINDINGS;
    Finding& finding = findings[has_room ? finding_count++ : MAX_FINDINGS - 1];
    if (!has_room) return finding;
    finding = {};
    finding.kind = kind;
    finding.pc = pc;
    finding.other_pc = other_pc;
    finding.address = reinterpret_cast<uint64_t>(address);
    finding.block = blockIdx.x;
    finding.thread = threadIdx.x;
    finding.times = 1;
    va_list values;
    va_start(values, format);
    vsnprintf(finding.text, sizeof finding.text, format, values);
    va_end(values);
    return finding;
}

static const char* verb(bool write) { return write ? "write" : "read"; }

// ---- Who is ordered after whom ----

static uint32_t interval;          // of a block between two of its barriers; never repeats
static uint32_t block_start;       // the first interval of this block
static bool fine;                  // whether parts of the block order each other, and clocks matter
static uint32_t (*clocks)[AGENTS]; // what each thread knows of every agent's time
static uint32_t (*part_clocks)[2][AGENTS]; // gathered, and as handed out
static uint32_t (*mbarrier_clocks)[2][AGENTS];
static uint32_t phases[MAX_MBARRIERS]; // completed
static const mbarrier_t* mbarriers[MAX_MBARRIERS];
static unsigned mbarrier_count;

inline unsigned agents() { return MAX_THREADS + mbarrier_count; }

inline void join(uint32_t* __restrict into, const uint32_t* __restrict from) {
    const unsigned threads = blockDim.x, end = agents();
    for (unsigned i = 0; i < threads; ++i) into[i] = max(into[i], from[i]); // others have no time
    for (unsigned i = MAX_THREADS; i < end; ++i) into[i] = max(into[i], from[i]);
}

static void clear_clocks() {
    for (unsigned thread = 0; thread < blockDim.x; ++thread) {
        memset(clocks[thread], 0, sizeof clocks[thread]);
        clocks[thread][thread] = 1;
    }
    memset(part_clocks, 0, PARTS * sizeof *part_clocks);
    memset(mbarrier_clocks, 0, MAX_MBARRIERS * sizeof *mbarrier_clocks);
    memset(phases, 0, sizeof phases);
    mbarrier_count = 0;
}

// From the first use on in this library. What several threads have read before in this interval is
// no longer known by thread; it counts as ordered.
static void refine() {
    if (fine) return;
    fine = true;
    if (!clocks) {
        clocks = static_cast<uint32_t (*)[AGENTS]>(calloc(MAX_THREADS, sizeof *clocks));
        part_clocks = static_cast<uint32_t (*)[2][AGENTS]>(calloc(PARTS, sizeof *part_clocks));
        mbarrier_clocks =
            static_cast<uint32_t (*)[2][AGENTS]>(calloc(MAX_MBARRIERS, sizeof *mbarrier_clocks));
    }
    clear_clocks();
}

inline uint32_t now(unsigned thread) { return fine ? clocks[thread][thread] : 0; }

// Whether what an agent did at a time in an interval comes before what this thread does now.
inline bool is_ordered(uint32_t its_interval, unsigned agent, uint32_t time) {
    if (agent == threadIdx.x) return true;
    if (agent < MAX_THREADS && its_interval != interval) return true;
    return fine && clocks[threadIdx.x][agent] >= time;
}

static void release(uint32_t* into) {
    join(into, clocks[threadIdx.x]);
    ++clocks[threadIdx.x][threadIdx.x];
}

void pass_block_barrier() {
    ++interval;
    if (!fine) return;
    for (unsigned agent = MAX_THREADS; agent < agents(); ++agent) {
        uint32_t latest = 0;
        for (unsigned i = 0; i < blockDim.x; ++i) latest = max(latest, clocks[i][agent]);
        for (unsigned i = 0; i < blockDim.x; ++i) clocks[i][agent] = latest;
    }
}

void reach_part_barrier(unsigned part) {
    refine();
    release(part_clocks[part][0]);
}

void complete_part_barrier(unsigned part) {
    memcpy(part_clocks[part][1], part_clocks[part][0], sizeof part_clocks[part][1]);
}

void leave_part_barrier(unsigned part) {
    // What this thread knew when it came is in there: all of it but its own time is replaced.
    uint32_t* known = clocks[threadIdx.x];
    const uint32_t time = known[threadIdx.x];
    memcpy(known, part_clocks[part][1], blockDim.x * sizeof *known);
    memcpy(known + MAX_THREADS, part_clocks[part][1] + MAX_THREADS, mbarrier_count * sizeof *known);
    known[threadIdx.x] = time;
}

// ---- Shared memory ----

struct Reader {
    uint32_t thread, time;
};

struct Word {
    uint64_t write_pc, read_pc;
    uint32_t write_interval, read_interval;
    uint32_t write_time, read_time;
    uint16_t writer, reader; // agents
    uint16_t valid;          // inside an array
    uint16_t in_flight;      // an asynchronous copy writes it
    Reader* readers;         // SEVERAL, where clocks matter
    uint32_t reader_count, reader_capacity;
};

static Word* words; // of shared memory
// Of each word, the interval in which any thread may read it and nothing more is learnt from that:
// several have, and it was written before.
static uint32_t* quiet;

static Word& word(const void* address) {
    return words[static_cast<size_t>(static_cast<const char*>(address) - shared_begin) / 4];
}

// Makes room, at first by keeping of each thread the latest reading alone.
[[gnu::noinline]] static void make_room_for_readers(Word& its) {
    static uint32_t latest[MAX_THREADS];
    for (unsigned i = 0; i < its.reader_count; ++i)
        latest[its.readers[i].thread] = its.readers[i].time; // times ascend
    unsigned kept = 0;
    for (unsigned i = 0; i < its.reader_count; ++i)
        if (latest[its.readers[i].thread] == its.readers[i].time)
            its.readers[kept++] = its.readers[i];
    its.reader_count = kept;
    if (2 * kept < its.reader_capacity) return;
    its.reader_capacity = 2 * its.reader_capacity + 16;
    its.readers = static_cast<Reader*>(realloc(its.readers, its.reader_capacity * sizeof(Reader)));
}

static void add_reader(Word& its, unsigned thread, uint32_t time) {
    if (its.reader_count) {
        Reader& last = its.readers[its.reader_count - 1];
        if (last.thread == thread) {
            last.time = time;
            return;
        }
    }
    if (its.reader_count == its.reader_capacity) make_room_for_readers(its);
    its.readers[its.reader_count++] = {thread, time};
}

static const SharedArray* nearest_array(const char* address, int64_t& past_end) {
    const int64_t offset = address - shared_begin;
    const SharedArray* nearest = nullptr;
    int64_t distance = INT64_MAX;
    for (unsigned i = 0; i < shared_array_count; ++i) {
        const SharedArray& array = shared_arrays[i];
        const int64_t end = array.offset + array.bytes;
        const int64_t gap = offset >= end ? offset - end + 1 : array.offset - offset;
        if (gap >= distance) continue;
        distance = gap;
        nearest = &array;
        past_end = offset >= end ? offset - end : offset - array.offset;
    }
    return nearest;
}

[[noreturn, gnu::cold, gnu::noinline]] static void
report_outside_shared(const char* address, unsigned bytes, bool write, uint64_t pc) {
    int64_t past_end = 0;
    if (const SharedArray* array = nearest_array(address, past_end))
        report("out of bounds", pc, 0, address,
               "%ss %u bytes of shared memory, %lld bytes %s %s, which has %lld", verb(write),
               bytes, static_cast<long long>(past_end < 0 ? -past_end : past_end),
               past_end < 0 ? "before the beginning of" : "past the end of", array->name,
               static_cast<long long>(array->bytes));
    else
        report("out of bounds", pc, 0, address, "%ss %u bytes of shared memory, but has none",
               verb(write), bytes);
    simulator::end_launch();
}

[[gnu::cold, gnu::noinline]] static void report_race(const Word& its, bool write, bool with_write,
                                                     const void* address, uint64_t pc) {
    const unsigned other = with_write ? its.writer : its.reader;
    const uint64_t other_pc = with_write ? its.write_pc : its.read_pc;
    if (other >= MAX_THREADS && other != SEVERAL)
        report("copy in flight", pc, other_pc, address,
               "%ss what an asynchronous copy wrote, without having waited for its mbarrier; the "
               "copy:",
               verb(write));
    else if (other == SEVERAL)
        report("race", pc, other_pc, address,
               "%ss what other threads read, with nothing between that orders them; the last of "
               "them:",
               verb(write));
    else
        report("race", pc, other_pc, address,
               "%ss what thread %u %s, with nothing between that orders them; thread %u:",
               verb(write), other, with_write ? "wrote" : "reads", other);
}

[[gnu::cold, gnu::noinline]] static void report_in_flight(const Word& its, bool write, bool copy,
                                                          const void* address, uint64_t pc) {
    report("copy in flight", pc, its.write_pc, address,
           "%s what an asynchronous copy is still writing; expected a wait first; the copy:",
           copy    ? "overwrites by another copy"
           : write ? "overwrites"
                   : "reads");
}

inline void check_reads(Word& its, const void* address, uint64_t pc) {
    if (its.read_interval != interval) return;
    if (its.reader != SEVERAL) {
        if (!is_ordered(its.read_interval, its.reader, its.read_time))
            report_race(its, true, false, address, pc);
        return;
    }
    if (!fine) return report_race(its, true, false, address, pc);
    const uint32_t* known = clocks[threadIdx.x];
    for (unsigned i = 0; i < its.reader_count; ++i)
        if (its.readers[i].time > known[its.readers[i].thread]) {
            its.reader = static_cast<uint16_t>(its.readers[i].thread);
            report_race(its, true, false, address, pc);
            its.reader = SEVERAL;
            return;
        }
}

static void read_shared(Word& its, const void* address, uint64_t pc) {
    if (its.in_flight) return report_in_flight(its, false, false, address, pc);
    if (its.write_interval < block_start) {
        report("uninitialised", pc, 0, address,
               "reads shared memory that nobody in this block has written");
        return;
    }
    if (!is_ordered(its.write_interval, its.writer, its.write_time))
        report_race(its, false, true, address, pc);
    const uint32_t time = now(threadIdx.x);
    if (its.read_interval != interval) {
        its.read_interval = interval;
        its.reader = static_cast<uint16_t>(threadIdx.x);
        its.reader_count = 0;
    } else if (its.reader != threadIdx.x) {
        if (fine) {
            if (its.reader != SEVERAL) add_reader(its, its.reader, its.read_time);
            add_reader(its, threadIdx.x, time);
        }
        its.reader = SEVERAL;
        if (!fine && its.write_interval != interval) quiet[&its - words] = interval;
    }
    its.read_time = time;
    its.read_pc = pc;
}

inline void begin_write(Word& its, bool copy, const void* address, uint64_t pc) {
    if (its.in_flight)
        report_in_flight(its, true, copy, address, pc);
    else if (its.write_interval >= block_start &&
             !is_ordered(its.write_interval, its.writer, its.write_time))
        report_race(its, true, true, address, pc);
    check_reads(its, address, pc);
    its.read_interval = quiet[&its - words] = 0;
    its.write_pc = pc;
    its.write_interval = interval;
    its.write_time = now(threadIdx.x);
    its.writer = static_cast<uint16_t>(threadIdx.x);
    its.in_flight = copy;
}

// ---- mbarriers ----

static unsigned index_of(const mbarrier_t* address) {
    for (unsigned i = 0; i < mbarrier_count; ++i)
        if (mbarriers[i] == address) return i;
    return 0;
}

void init_mbarrier(const mbarrier_t* address, uint64_t pc) {
    refine();
    for (unsigned i = 0; i < 2; ++i) begin_write((&word(address))[i], false, address, pc);
    bool known = false;
    for (unsigned i = 0; i < mbarrier_count; ++i) known |= mbarriers[i] == address;
    if (!known && mbarrier_count < MAX_MBARRIERS) mbarriers[mbarrier_count++] = address;
}

void use_mbarrier(const mbarrier_t* address, uint64_t pc) {
    const Word& its = word(address);
    if (its.write_interval < block_start) return; // the model itself tells that
    if (!is_ordered(its.write_interval, its.writer, its.write_time))
        report("race", pc, its.write_pc, address,
               "uses an mbarrier that thread %u initialised, with nothing between that orders "
               "them; thread %u:",
               its.writer, its.writer);
}

void arrive(const mbarrier_t* address) { release(mbarrier_clocks[index_of(address)][0]); }

void complete_phase(const mbarrier_t* address) {
    const unsigned i = index_of(address);
    auto& gathered = mbarrier_clocks[i][0];
    gathered[MAX_THREADS + i] = ++phases[i];
    memcpy(mbarrier_clocks[i][1], gathered, sizeof gathered);
}

void pass_phase(const mbarrier_t* address) {
    join(clocks[threadIdx.x], mbarrier_clocks[index_of(address)][1]);
}

// ---- Global memory ----

// Who has written an element of the result.
struct Element {
    uint64_t pc;
    uint32_t interval, time;
    uint32_t block; // + 1; 0: not written
    uint16_t thread;
};

// An element that a second block has written.
struct Conflict {
    int64_t index;
    Element second;
};

static Element* elements;
static size_t element_capacity;
// Of scratch that is not initialised, by operand.
constexpr unsigned MAX_OPERANDS = 8;
static Element* scratch_elements[MAX_OPERANDS];
static Conflict* conflicts;
static size_t conflict_count, conflict_capacity;
static int64_t tile_rows, tile_cols; // 0: the result has no tiles

static const Operand& result() { return operands[operand_count - 1]; }

static Element& element(Position position) {
    return elements[position.row * result().cols + position.col];
}

[[noreturn, gnu::cold, gnu::noinline]] static void
report_outside_global(const char* address, unsigned bytes, bool write, uint64_t pc) {
    const Operand* nearest = nullptr;
    int64_t distance = INT64_MAX;
    Position where = {};
    for (unsigned i = 0; i < operand_count; ++i) {
        const Operand& operand = operands[i];
        const char* last = operand.base + 4 * ((operand.rows - 1) * operand.row_stride +
                                               (operand.cols - 1) * operand.col_stride);
        const char* low =
            min(reinterpret_cast<uintptr_t>(operand.base), reinterpret_cast<uintptr_t>(last)) +
            static_cast<const char*>(nullptr);
        const char* high =
            max(reinterpret_cast<uintptr_t>(operand.base), reinterpret_cast<uintptr_t>(last)) +
            static_cast<const char*>(nullptr);
        const int64_t gap = address < low ? low - address : address > high ? address - high : 0;
        if (gap >= distance) continue;
        distance = gap;
        nearest = &operand;
        where = locate(operand, address);
    }
    if (!nearest || distance > 1 << 20)
        report("out of bounds", pc, 0, address,
               "%ss %u bytes at an address that is in none of the kernel's matrices", verb(write),
               bytes);
    else
        report("out of bounds", pc, 0, address,
               "%ss %u bytes at %s[%lld, %lld]; it has %lld rows and %lld columns", verb(write),
               bytes, nearest->name, static_cast<long long>(where.row),
               static_cast<long long>(where.col), static_cast<long long>(nearest->rows),
               static_cast<long long>(nearest->cols));
    simulator::end_launch();
}

static void write_result(const char* address, Position position, uint64_t pc) {
    Element& its = element(position);
    const Element mine = {pc, interval, now(threadIdx.x), blockIdx.x + 1,
                          static_cast<uint16_t>(threadIdx.x)};
    if (its.block == 0) {
        its = mine;
    } else if (its.block != mine.block) {
        if (tile_rows == 0) {
            report("race", pc, its.pc, address,
                   "writes what block %u wrote as well; it:", its.block - 1);
        } else if (conflict_count < 1 << 16) {
            if (conflict_count == conflict_capacity) {
                conflict_capacity = 2 * conflict_capacity + 64;
                conflicts = static_cast<Conflict*>(
                    realloc(conflicts, conflict_capacity * sizeof(Conflict)));
            }
            conflicts[conflict_count++] = {position.row * result().cols + position.col, mine};
        }
    } else if (!is_ordered(its.interval, its.thread, its.time)) {
        report("race", pc, its.pc, address,
               "writes %s[%lld, %lld], which thread %u wrote as well; thread %u:", result().name,
               static_cast<long long>(position.row), static_cast<long long>(position.col),
               its.thread, its.thread);
    } else {
        its = mine;
    }
}

static void read_result(const char* address, Position position, uint64_t pc) {
    const Element& its = element(position);
    if (its.block == 0) {
        if (!result().initialised)
            report("uninitialised", pc, 0, address,
                   "reads %s[%lld, %lld], which holds nothing before it is written", result().name,
                   static_cast<long long>(position.row), static_cast<long long>(position.col));
    } else if (its.block != blockIdx.x + 1 || !is_ordered(its.interval, its.thread, its.time)) {
        report("race", pc, its.pc, address,
               "reads %s[%lld, %lld], which thread %u of block %u wrote; it:", result().name,
               static_cast<long long>(position.row), static_cast<long long>(position.col),
               its.thread, its.block - 1);
    }
}

// What one block leaves there, others read: nothing is asked but that it has been written, and that
// the threads of one block are ordered. Whether blocks are, no order of them can show here.
static void access_scratch(const Operand& operand, Position position, const char* address,
                           bool write, uint64_t pc) {
    Element* all = scratch_elements[&operand - operands];
    if (!all) return;
    Element& its = all[position.row * operand.cols + position.col];
    const bool by_another =
        its.block == blockIdx.x + 1 && !is_ordered(its.interval, its.thread, its.time);
    if (its.block && by_another)
        report("race", pc, its.pc, address,
               "%ss %s[%lld, %lld], which thread %u wrote, with nothing between that orders them; "
               "thread %u:",
               verb(write), operand.name, static_cast<long long>(position.row),
               static_cast<long long>(position.col), its.thread, its.thread);
    else if (write)
        its = {pc, interval, now(threadIdx.x), blockIdx.x + 1, static_cast<uint16_t>(threadIdx.x)};
    else if (!its.block)
        report("uninitialised", pc, 0, address,
               "reads %s[%lld, %lld], which holds nothing before it is written", operand.name,
               static_cast<long long>(position.row), static_cast<long long>(position.col));
}

// The operands but the result that fill a range of memory without gaps: a quick answer for reads.
struct Range {
    const char* begin;
    size_t bytes;
};
static Range solid[2];

static void access_global(const char* address, unsigned bytes, bool write, uint64_t pc) {
    Position position;
    const Operand* operand = find_operand(address, bytes, position);
    if (!operand) {
        if (address >= stacks_begin && address < stacks_end) return;
        if (address >= library_begin && address < library_end) return; // the kernel's constants
        report_outside_global(address, bytes, write, pc);
    }
    if (operand->scratch) {
        for (unsigned at = 0; at < bytes; at += 4)
            access_scratch(*operand, locate(*operand, address + at), address + at, write, pc);
        return;
    }
    if (operand != &result()) {
        if (!write) return;
        report("read-only", pc, 0, address, "writes %s[%lld, %lld]; a kernel writes %s alone",
               operand->name, static_cast<long long>(position.row),
               static_cast<long long>(position.col), result().name);
        simulator::end_launch();
    }
    for (unsigned at = 0; at < bytes; at += 4) {
        if (at) position = locate(*operand, address + at);
        write ? write_result(address + at, position, pc) : read_result(address + at, position, pc);
    }
}

// A second look, at the launch's end, at who wrote which part of the result: each tile belongs to
// the block that wrote most of it.
static void check_tiles() {
    const Operand& c = result();
    const int64_t tiles_down = (c.rows + tile_rows - 1) / tile_rows;
    const int64_t tiles_across = (c.cols + tile_cols - 1) / tile_cols;
    auto* owners = static_cast<uint32_t*>(
        calloc(static_cast<size_t>(tiles_down * tiles_across), sizeof(uint32_t)));
    auto report_stray = [&](int64_t index, const Element& stray, const Element& other) {
        const int64_t row = index / c.cols, col = index % c.cols;
        const uint32_t owner = owners[row / tile_rows * tiles_across + col / tile_cols];
        if (stray.block == owner) return;
        blockIdx.x = stray.block - 1;
        threadIdx.x = stray.thread;
        report("outside the tile", stray.pc, other.block == owner ? other.pc : 0,
               c.base + 4 * (row * c.row_stride + col * c.col_stride),
               "writes %s[%lld, %lld], which belongs to the tile of block %u%s", c.name,
               static_cast<long long>(row), static_cast<long long>(col), owner - 1,
               other.block == owner ? "; it:" : "");
    };
    for (int64_t down = 0; down < tiles_down; ++down)
        for (int64_t across = 0; across < tiles_across; ++across) {
            // Boyer and Moore's majority vote.
            uint32_t candidate = 0;
            int64_t votes = 0;
            for (int64_t row = down * tile_rows; row < min(c.rows, (down + 1) * tile_rows); ++row)
                for (int64_t col = across * tile_cols; col < min(c.cols, (across + 1) * tile_cols);
                     ++col) {
                    const uint32_t block = elements[row * c.cols + col].block;
                    if (block == 0) continue;
                    if (votes == 0) candidate = block;
                    votes += block == candidate ? 1 : -1;
                }
            owners[down * tiles_across + across] = candidate;
        }
    for (size_t i = 0; i < conflict_count; ++i) {
        const Element& first = elements[conflicts[i].index];
        report_stray(conflicts[i].index, conflicts[i].second, first);
        report_stray(conflicts[i].index, first, conflicts[i].second);
    }
    for (int64_t i = 0; i < c.rows * c.cols; ++i)
        if (elements[i].block) report_stray(i, elements[i], Element{});
    free(owners);
}

static void check_all_written() {
    const Operand& c = result();
    int64_t missing = 0, first = 0;
    for (int64_t i = c.rows * c.cols; i-- > 0;)
        if (elements[i].block == 0) {
            ++missing;
            first = i;
        }
    if (!missing) return;
    blockIdx.x = threadIdx.x = 0;
    Finding& finding = report(
        "unwritten", 0, 0,
        c.base + 4 * (first / c.cols * c.row_stride + first % c.cols * c.col_stride),
        "%lld of the %lld floats of %s are never written, the first %s[%lld, %lld]",
        static_cast<long long>(missing), static_cast<long long>(c.rows * c.cols), c.name, c.name,
        static_cast<long long>(first / c.cols), static_cast<long long>(first % c.cols));
    finding.block = finding.thread = -1;
}

// ---- What the runtime calls ----

[[gnu::noinline]] static void access_slowly(const char* address, unsigned bytes, bool write,
                                            uint64_t pc) {
    if (reinterpret_cast<uintptr_t>(address) & (bytes - 1)) {
        report("misaligned", pc, 0, address,
               "%ss %u bytes, which a GPU does at multiples of %u only", verb(write), bytes, bytes);
        simulator::end_launch();
    }
    const auto offset = static_cast<size_t>(address - shared_begin);
    if (offset >= static_cast<size_t>(shared_end - shared_begin))
        return access_global(address, bytes, write, pc);
    for (unsigned at = 0; at < bytes; at += 4) {
        Word& its = words[(offset + at) / 4];
        if (!its.valid) report_outside_shared(address + at, bytes, write, pc);
        if (write)
            begin_write(its, false, address + at, pc);
        else
            read_shared(its, address + at, pc);
    }
}

template <unsigned BYTES, bool WRITE>
inline void access(const char* address, uint64_t pc) {
    const auto offset = static_cast<size_t>(address - shared_begin);
    if (!WRITE && reinterpret_cast<uintptr_t>(address) % BYTES == 0) {
        if (offset < static_cast<size_t>(shared_end - shared_begin)) {
            bool known = true;
            for (unsigned at = 0; at < BYTES; at += 4)
                known &= quiet[(offset + at) / 4] == interval;
            if (known) return;
        } else {
            for (const Range& range : solid) {
                const auto from_begin = static_cast<size_t>(address - range.begin);
                if (from_begin < range.bytes && BYTES <= range.bytes - from_begin) return;
            }
        }
    }
    access_slowly(address, BYTES, WRITE, pc);
}

void issue_copy(const float* to, const float* from, unsigned floats_read, unsigned floats_written,
                uint64_t pc) {
    for (unsigned i = 0; i < floats_read; ++i)
        access_global(reinterpret_cast<const char*>(from + i), 4, false, pc);
    for (unsigned i = 0; i < floats_written; ++i) {
        const auto* address = reinterpret_cast<const char*>(to + i);
        Word& its = word(address);
        if (!its.valid) report_outside_shared(address, floats_written * 4, true, pc);
        begin_write(its, true, address, pc);
    }
}

void land_copy(const float* to, unsigned floats, const mbarrier_t* barrier) {
    for (unsigned i = 0; i < floats; ++i) {
        Word& its = word(to + i);
        its.in_flight = false;
        its.write_interval = interval;
        if (barrier) {
            const unsigned index = index_of(barrier);
            its.writer = static_cast<uint16_t>(MAX_THREADS + index);
            its.write_time = phases[index] + 1;
        } else {
            its.writer = static_cast<uint16_t>(threadIdx.x);
            its.write_time = now(threadIdx.x);
        }
    }
}

void begin_launch(unsigned rows, unsigned cols) {
    finding_count = 0;
    conflict_count = 0;
    tile_rows = rows;
    tile_cols = cols;
    if (!words) {
        const auto count = static_cast<size_t>(shared_end - shared_begin) / 4 + 1;
        words = static_cast<Word*>(calloc(count, sizeof(Word)));
        quiet = static_cast<uint32_t*>(calloc(count, sizeof(uint32_t)));
        for (unsigned i = 0; i < shared_array_count; ++i)
            for (int64_t at = 0; at < shared_arrays[i].bytes; at += 4)
                words[(shared_arrays[i].offset + at) / 4].valid = true;
    }
    unsigned solid_count = 0;
    memset(solid, 0, sizeof solid);
    for (unsigned i = 0; i + 1 < operand_count; ++i) {
        const Operand& its = operands[i];
        if (its.scratch) continue;
        const bool by_rows = its.col_stride == 1 && (its.rows == 1 || its.row_stride == its.cols);
        const bool by_cols = its.row_stride == 1 && (its.cols == 1 || its.col_stride == its.rows);
        if ((by_rows || by_cols) && solid_count < 2)
            solid[solid_count++] = {its.base, static_cast<size_t>(its.rows * its.cols) * 4};
    }
    for (unsigned i = 0; i < MAX_OPERANDS; ++i) {
        free(scratch_elements[i]);
        scratch_elements[i] = nullptr;
        if (i < operand_count && operands[i].scratch && !operands[i].initialised)
            scratch_elements[i] = static_cast<Element*>(
                calloc(static_cast<size_t>(operands[i].rows * operands[i].cols), sizeof(Element)));
    }
    const auto needed = static_cast<size_t>(result().rows * result().cols);
    if (needed > element_capacity) {
        free(elements);
        elements = static_cast<Element*>(malloc(needed * sizeof(Element)));
        element_capacity = needed;
    }
    memset(elements, 0, needed * sizeof(Element));
}

void begin_block() {
    block_start = ++interval;
    for (unsigned i = 0; i < shared_array_count; ++i)
        for (int64_t at = 0; at < shared_arrays[i].bytes; at += 4)
            words[(shared_arrays[i].offset + at) / 4].in_flight = false;
    if (fine) clear_clocks();
}

void end_launch() {
    if (tile_rows) check_tiles();
    check_all_written();
}

} // namespace checks
} // namespace simulator

extern "C" __attribute__((visibility("default"))) const simulator::Finding*
simulator_findings(uint64_t* count) {
    *count = simulator::checks::finding_count;
    return simulator::checks::findings;
}
