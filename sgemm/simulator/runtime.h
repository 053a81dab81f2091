// What the parts of the simulator's runtime share. The kernel itself sees simulator.h alone.
#pragma once

#define SIMULATOR_RUNTIME
#include "simulator.h"

#include <stddef.h>

namespace simulator {

constexpr unsigned MAX_THREADS = 1024; // of a block
constexpr unsigned NAMED_BARRIERS = 16;
constexpr unsigned WARPS = MAX_THREADS / warpSize;

enum Mode { RUN, CHECK, COUNT };

// A matrix that a launch may use: float (i, j) is base[i * row_stride + j * col_stride]. The last
// one of a launch is its result, and the only one that it may write beside scratch. Python's
// Operand.
struct Operand {
    const char* name;
    char* base;
    int64_t rows, cols, row_stride, col_stride;
    int64_t initialised; // whether it may be read before it is written
    int64_t scratch;     // whether all blocks may write it
};

// An array in shared memory. Python's SharedArray.
struct SharedArray {
    const char* name;
    int64_t offset, bytes; // from the beginning of shared memory
};

// A mistake that was seen. Python's Finding has what the places mean.
struct Finding {
    const char* kind;
    char text[512];
    char file[256]; // or empty: the place is pc
    int64_t line;
    uint64_t pc, other_pc; // within the library; 0: none
    uint64_t address;
    int64_t block, thread;
    int64_t times;
};

extern Mode mode;
extern bool counting; // whether the mode is COUNT; a constant, to the kernel
extern char *shared_begin, *shared_end;
extern char *stacks_begin, *stacks_end;
extern char *library_begin, *library_end;
extern const Operand* operands;
extern unsigned operand_count;
extern const SharedArray* shared_arrays;
extern unsigned shared_array_count;

// Where a call came from.
inline uint64_t site(const void* return_address) {
    return static_cast<uint64_t>(static_cast<const char*>(return_address) - library_begin);
}

// Abandons the threads of the launch, and with them whatever is on their stacks.
[[noreturn]] void end_launch();

inline bool is_shared(const void* address, size_t bytes) {
    const auto* begin = static_cast<const char*>(address);
    return begin >= shared_begin && begin + bytes <= shared_end;
}

// Where an address lies in a matrix.
struct Position {
    int64_t row, col;
    bool inside;
};
Position locate(const Operand& operand, const char* address);

// The matrix that holds all `bytes` at an address, or null.
const Operand* find_operand(const char* address, unsigned bytes, Position& position);

// ---- checks.cpp: mode CHECK ----

namespace checks {
[[gnu::format(printf, 5, 6)]] Finding& report(const char* kind, uint64_t pc, uint64_t other_pc,
                                              const void* address, const char* format, ...);
void begin_launch(unsigned tile_rows, unsigned tile_cols);
void begin_block();
void end_launch();
// Threads order each other: at the block's barrier, at a part's, through an mbarrier.
void pass_block_barrier();
void reach_part_barrier(unsigned part);
void complete_part_barrier(unsigned part);
void leave_part_barrier(unsigned part);
void init_mbarrier(const mbarrier_t* address, uint64_t pc);
void use_mbarrier(const mbarrier_t* address, uint64_t pc);
void arrive(const mbarrier_t* address);
void complete_phase(const mbarrier_t* address);
void pass_phase(const mbarrier_t* address);
// An asynchronous copy is issued; it lands for its thread or for who waits for the mbarrier.
void issue_copy(const float* to, const float* from, unsigned floats_read, unsigned floats_written,
                uint64_t pc);
void land_copy(const float* to, unsigned floats, const mbarrier_t* barrier);
} // namespace checks

// ---- counts.cpp: mode COUNT ----

namespace counts {
void begin_launch();
void begin_block();
void end_launch();
// cp.async, of a number of floats that the compiler knows or of any_size.
void copy(const float* to, const float* from, unsigned floats_read, unsigned floats_written,
          bool any_size, uint64_t pc);
void bulk_copy(const float* to, const float* from, unsigned floats, uint64_t pc);
void barrier(uint64_t pc);
void fma(uint64_t pc);
} // namespace counts

} // namespace simulator
