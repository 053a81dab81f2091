// Where in the matrices of a launch an address lies.
#include "runtime.h"

namespace simulator {

static int64_t magnitude(int64_t stride) { return stride < 0 ? -stride : stride; }

// A dimension as seen from the lowest address of the matrix.
struct Dimension {
    int64_t count, stride;
    bool reversed;

    Dimension(int64_t length, int64_t step)
        : count(length), stride(length > 1 ? magnitude(step) : 0), reversed(step < 0) {}
    int64_t index(int64_t from_low) const { return reversed ? count - 1 - from_low : from_low; }
};

Position locate(const Operand& operand, const char* address) {
    Dimension rows(operand.rows, operand.row_stride), cols(operand.cols, operand.col_stride);
    const int64_t lowest = -(rows.reversed ? (rows.count - 1) * rows.stride : 0) -
                           (cols.reversed ? (cols.count - 1) * cols.stride : 0);
    const bool by_rows = rows.stride >= cols.stride;
    const Dimension& outer = by_rows ? rows : cols;
    const Dimension& inner = by_rows ? cols : rows;
    // in floats, rounded down
    const int64_t floats = ((address - operand.base) >> 2) - lowest;
    int64_t i = 0, j = 0;
    if (outer.stride) {
        i = floats >= 0 ? floats / outer.stride : (floats + 1) / outer.stride - 1;
        // Rows that overlap in memory: the last that can hold it.
        if (i >= outer.count && inner.count > 1 && inner.stride * (inner.count - 1) >= outer.stride)
            i = outer.count - 1;
    }
    const int64_t rest = floats - i * outer.stride;
    if (inner.stride) j = rest / inner.stride;
    const bool inside =
        i >= 0 && i < outer.count && j >= 0 && j < inner.count && rest == j * inner.stride;
    i = outer.index(i);
    j = inner.index(j);
    return by_rows ? Position{i, j, inside} : Position{j, i, inside};
}

const Operand* find_operand(const char* address, unsigned bytes, Position& position) {
    for (unsigned i = 0; i < operand_count; ++i) {
        position = locate(operands[i], address);
        bool inside = position.inside;
        for (unsigned at = 4; inside && at < bytes; at += 4)
            inside = locate(operands[i], address + at).inside;
        if (inside) return &operands[i];
    }
    return nullptr;
}

} // namespace simulator
