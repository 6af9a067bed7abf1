// The coordinate structure of one frame: a two-step bitmap per level ("leaf map").
//
// A level is a grid of cells grouped into leaves of 8 x 8 x 8. A bit of a top word says that a leaf
// holds an active cell; a leaf has eight words, one a z slice, bit = (y & 7) * 8 + (x & 7). Each
// word stands beside the number of set bits before it, so the row of a cell - the number of active
// cells before it in (leaf raster, z, y, x) order - takes two loads and two population counts: no
// hash, no probe, no sort, and the same order on every run.
#pragma once
#include "common.cuh"

constexpr int kWordsPerLeaf = 8;

struct Level {
    int nz, ny, nx;         // cells along each axis
    int ly, lx;             // leaves along y and x
    int stride;             // edge of a cell in cells of level 1 (3-D levels)
    int kind;               // 0: 3-D; 1: bird's-eye union; 2: its 3 x 3 dilation
    int top_words;
    int chunk_words;        // top words that one block numbers: 1 or 8
    int leaf_capacity;      // leaves that fit
    int row_capacity;       // rows that fit
    uint2* top;             // (top_words) leaf bits, leaves before
    u64* cells;             // (leaves of the grid, 8) cell bits by raster index; empty between frames
    ulonglong2* leaf;       // (leaf_capacity, 8) cell bits, rows before
    int* coords;            // (row_capacity, 3) z, y, x
    int* counts;            // leaves, rows (true numbers, also where more than fit)
    u64* chunk_sums;        // leaves and rows of each chunk
};

// All levels of a frame, as one argument.
struct Levels {
    Level at[8];
};

struct LeafBit {
    int leaf_cell;  // raster index of the leaf
    int word, bit;  // slice in the leaf, bit in the slice
};

__device__ __forceinline__ LeafBit leaf_bit(const Level& level, int z, int y, int x) {
    return {((z >> 3) * level.ly + (y >> 3)) * level.lx + (x >> 3), z & 7, (y & 7) * 8 + (x & 7)};
}

// Number of the leaf among active leaves, or -1 where it is not active or did not fit.
__device__ __forceinline__ int leaf_of(const Level& level, uint2 top, int leaf_cell) {
    const u32 bit = 1u << (leaf_cell & 31);
    if (!(top.x & bit)) return -1;
    const int leaf = static_cast<int>(top.y) + __popc(top.x & (bit - 1));
    return leaf < level.leaf_capacity ? leaf : -1;
}
__device__ __forceinline__ int leaf_index(const Level& level, int leaf_cell) {
    return leaf_of(level, level.top[leaf_cell >> 5], leaf_cell);
}

__device__ __forceinline__ int rows_of(const Level& level) { return min(level.counts[1], level.row_capacity); }

// The low half of 128 bits shifted right by less than 64.
__device__ __forceinline__ u32 funnel(u64 low, u64 high, int by) { return static_cast<u32>(low >> by | high << 1 << (63 - by)); }

// 3 x 3 cells of one z plane, bit = row * 3 + column, out of the 2 x 2 words that hold them, [y][x]; the
// first cell (y, x) lies in words[0][0].
__device__ __forceinline__ u32 nine_bits(const u64 (&words)[2][2], int y, int x) {
    const int down = (y & 7) * 8, right = x & 7;
    const u32 near = funnel(words[0][0], words[1][0], down), far = funnel(words[0][1], words[1][1], down);
    const u32 row0 = (near & 255u) | (far & 255u) << 8, row1 = (near >> 8 & 255u) | (far & 0xff00u);
    const u32 row2 = (near >> 16 & 255u) | (far >> 8 & 0xff00u);
    return (row0 >> right & 7u) | (row1 >> right & 7u) << 3 | (row2 >> right & 7u) << 6;
}

// The up to 2 x 2 words of one z plane that hold a window of at most 3 x 3 cells.
struct Window {
    ulonglong2 word[2][2];
    int y0, x0;  // first cell of the window; -1 is legal

    // Both look-ups of a word, and those of all four words, are in flight together.
    __device__ __forceinline__ void load(const Level& level, int z, int y, int x, int rows, int columns) {
        y0 = y, x0 = x;
        const int last_y = min((y + rows - 1) >> 3, level.ly - 1), last_x = min((x + columns - 1) >> 3, level.lx - 1);
        const bool inside = z >= 0 && z < level.nz;
        int cell[2][2];
        uint2 top[2][2];
#pragma unroll
        for (int a = 0; a < 2; ++a)
#pragma unroll
            for (int b = 0; b < 2; ++b) {
                const int cy = (y >> 3) + a, cx = (x >> 3) + b;
                cell[a][b] = ((z >> 3) * level.ly + cy) * level.lx + cx;
                const bool needed = inside && cy >= 0 && cy <= last_y && cx >= 0 && cx <= last_x;
                top[a][b] = needed ? level.top[cell[a][b] >> 5] : make_uint2(0u, 0u);
            }
#pragma unroll
        for (int a = 0; a < 2; ++a)
#pragma unroll
            for (int b = 0; b < 2; ++b) {
                const int leaf = leaf_of(level, top[a][b], cell[a][b]);
                word[a][b] = leaf >= 0 ? level.leaf[leaf * kWordsPerLeaf + (z & 7)] : make_ulonglong2(0, 0);
            }
    }

    // Active cells of three rows of three: bit = row * 3 + column.
    __device__ __forceinline__ u32 bits() const {
        const u64 words[2][2] = {{word[0][0].x, word[0][1].x}, {word[1][0].x, word[1][1].x}};
        return nine_bits(words, y0, x0);
    }

    // Row of the cell (dy, dx), which must be active.
    __device__ __forceinline__ int row(int dy, int dx) const {
        const int y = y0 + dy, x = x0 + dx;
        const bool upper = (y >> 3) > (y0 >> 3), far = (x >> 3) > (x0 >> 3);
        const ulonglong2 near_word = upper ? word[1][0] : word[0][0], far_word = upper ? word[1][1] : word[0][1];
        const ulonglong2 w = far ? far_word : near_word;
        const u64 below = (1ull << ((y & 7) * 8 + (x & 7))) - 1;
        return static_cast<int>(w.y) + __popcll(w.x & below);
    }
};

// Rows of the cells of a window line by line, in ascending order: those of one leaf follow each other.
struct LineRows {
    u32 near_cells, far_cells;  // eight cells of each line, in this leaf and in the next along x
    int near, far;              // row of the first active cell of the next line in either
    int lower_near, lower_far;  // the same where the lines enter the next leaf along y
    int turn, column;           // the line that does so; the first column of the window
    int row, next;              // of the line: row of the next active cell, row at the start of the next leaf

    __device__ __forceinline__ explicit LineRows(const Window& w) {
        const int down = (w.y0 & 7) * 8;
        near_cells = funnel(w.word[0][0].x, w.word[1][0].x, down), far_cells = funnel(w.word[0][1].x, w.word[1][1].x, down);
        const u64 above = (1ull << down) - 1;
        near = static_cast<int>(w.word[0][0].y) + __popcll(w.word[0][0].x & above);
        far = static_cast<int>(w.word[0][1].y) + __popcll(w.word[0][1].x & above);
        lower_near = static_cast<int>(w.word[1][0].y), lower_far = static_cast<int>(w.word[1][1].y);
        turn = 8 - (w.y0 & 7), column = w.x0 & 7;
    }

    // Starts line dy; to be called for 0, 1, 2 in this order.
    __device__ __forceinline__ void start(int dy) {
        if (dy == turn) near = lower_near, far = lower_far;
        const u32 line = near_cells >> dy * 8 & 255u;
        row = near + __popc(line & ((1u << column) - 1)), next = far;
        near += __popc(line), far += __popc(far_cells >> dy * 8 & 255u);
    }

    // Row of the cell dx of the line if it is active, else anything; to be called for 0, 1, 2 in this order.
    __device__ __forceinline__ int take(int dx, u32 active) {
        if (dx == 8 - column) row = next;
        const int found = row;
        row += active;
        return found;
    }
};
