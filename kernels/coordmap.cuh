// What the kernels of coordmap.cu share: coordinate maps, patterns of taps, and units of work.
#pragma once
#include "levels.cuh"

constexpr int kKeyTaps = 9;              // taps that the counting sort of a group can look at
constexpr int kMaxGroups = 9;
constexpr int kMaxBins = 3 << kKeyTaps;  // of all groups
constexpr int kMaxTaps = 27;
constexpr int kMaxDomains = 28;          // so that the arguments of a launch fit 4 KB
constexpr int kLeastUnitRows = 512;      // rows that a block counts at once

struct Domain {
    int out_level, in_level;
    int kz, ky, kx, stride, padding;
    int groups, group_taps;   // groups * group_taps == kz * ky * kx; 3, 9 or 27 taps a group
    int tile_rows;            // rows of a tile: 16 to 128
    int tile_capacity;        // tiles that fit
    u32* mask;                // (rows) taps of each row
    int* bins;                // (groups, patterns) rows of each pattern
    int* before;              // (units, groups, patterns) rows of each pattern in units counted earlier
    int* order;               // (tiles, tile_rows) output row + group * row capacity, or -1
    int* table;               // (tiles, group_taps, tile_rows) input row or -1; used taps come first
    u32* tile_mask;           // (tiles) union of taps
    int* tile_rank;           // (tiles) tiles, dearest first
    int* counts;              // tiles, executed taps, useful taps
};

// All maps of a frame, as one argument by value: what never changes needs no look-up in memory.
struct Domains {
    Domain at[kMaxDomains];
};
static_assert(sizeof(Levels) + sizeof(Domains) + 8 <= 4096, "arguments of a launch fit 4 KB");

// Rank of a bit pattern in Gray-code order. The upper bits of a rank are the rank of the upper bits.
__device__ __forceinline__ int gray_rank(u32 bits) {
    bits ^= bits >> 16;
    bits ^= bits >> 8;
    bits ^= bits >> 4;
    bits ^= bits >> 2;
    bits ^= bits >> 1;
    return static_cast<int>(bits);
}

// Rank of the taps of a 3 x 3 x 3 kernel: those that part rows best decide first.
__device__ __forceinline__ int cube_rank(u32 mask) {
    constexpr unsigned char taps[kMaxTaps] = {3, 17, 12, 4, 5, 16, 11, 18, 23, 26, 25, 24, 22, 21, 20, 19, 15, 14, 13, 10, 9, 8, 7, 6, 2, 1, 0};
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < kMaxTaps; ++i) bits = bits << 1 | (mask >> taps[i] & 1u);
    return gray_rank(bits);
}

__device__ __forceinline__ u32 group_bits(const Domain& d, u32 mask, int group) {
    return mask >> (group * d.group_taps) & ((1u << d.group_taps) - 1);
}

__device__ __forceinline__ int patterns_of(const Domain& d) { return 1 << min(d.group_taps, kKeyTaps); }

// Which of the patterns of a group a row has.
__device__ __forceinline__ int pattern_of(const Domain& d, u32 mask, int group) {
    if (d.group_taps > kKeyTaps) return cube_rank(mask) >> (kMaxTaps - kKeyTaps);
    return gray_rank(group_bits(d, mask, group));
}

// Pattern 0 uses no tap. Several groups leave such rows to the epilogue; a single one writes all.
__device__ __forceinline__ bool is_placed(const Domain& d, int pattern) { return pattern || d.groups == 1; }

__device__ __forceinline__ int first_z(const Domain& d, int z) { return d.kz > 1 ? z * d.stride - d.padding : z; }

// The work of all domains as one list of units, so that no block waits for a larger domain.
struct Units {
    int end[32];  // units of this domain and those before it, one a lane
};
struct Unit {
    int domain, index;
};
// count: units of the domain that each of the first 32 threads stands for.
__device__ __forceinline__ void list_units(Units& units, int count) {
    if (threadIdx.x < 32) {
        int end = count;
        for (int d = 1; d < 32; d *= 2) {
            const int left = __shfl_up_sync(0xffffffffu, end, d);
            if (threadIdx.x >= d) end += left;
        }
        units.end[threadIdx.x] = end;
    }
    __syncthreads();
}
__device__ __forceinline__ Unit unit_at(const Units& units, int n_domains, int turn) {
    for (int d = 0; d < n_domains; ++d)
        if (turn < units.end[d]) return {d, d ? turn - units.end[d - 1] : turn};
    return {-1, 0};
}
// Units of rows, as large as lets the blocks of the grid share all rows evenly; returns the rows of one.
// It is the same in every kernel that has the same grid.
__device__ __forceinline__ int list_row_units(Units& units, const Levels& levels, const Domains& domains, int n_domains) {
    __shared__ int unit_rows;
    int count = 0;
    if (threadIdx.x < 32) {
        const int rows = threadIdx.x < n_domains ? rows_of(levels.at[domains.at[threadIdx.x].out_level]) : 0;
        long long total = rows;
        for (int s = 16; s; s /= 2) total += __shfl_xor_sync(0xffffffffu, total, s);
        const int blocks = max(static_cast<int>(gridDim.x) - n_domains, 1);  // the last unit of a domain is not whole
        const int share = max(static_cast<int>((total + blocks - 1) / blocks + 31) & -32, kLeastUnitRows);
        count = (rows + share - 1) / share;
        if (threadIdx.x == 0) unit_rows = share;
    }
    list_units(units, count);
    return unit_rows;
}

// Active cells of PLANES planes of 3 x 3, from (z, y, x) on. The look-ups of its up to eight leaves are
// in flight together, then those of its up to twelve words.
template <int PLANES>
__device__ __forceinline__ u32 taps_at(const Level& in, int z, int y, int x) {
    constexpr int layers = PLANES > 1 ? 2 : 1;
    int cell[layers][2][2], leaf[layers][2][2];
    uint2 top[layers][2][2];
#pragma unroll
    for (int a = 0; a < layers; ++a)
#pragma unroll
        for (int b = 0; b < 2; ++b)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int cz = (z >> 3) + a, cy = (y >> 3) + b, cx = (x >> 3) + c;
                const bool reached = (a == 0 || (z & 7) + PLANES > 8) && (b == 0 || (y & 7) > 5) && (c == 0 || (x & 7) > 5);
                const bool exists = cz >= 0 && cz * 8 < in.nz && cy >= 0 && cy < in.ly && cx >= 0 && cx < in.lx;
                cell[a][b][c] = (cz * in.ly + cy) * in.lx + cx;
                top[a][b][c] = reached && exists ? in.top[cell[a][b][c] >> 5] : make_uint2(0u, 0u);
            }
#pragma unroll
    for (int a = 0; a < layers; ++a)
#pragma unroll
        for (int b = 0; b < 2; ++b)
#pragma unroll
            for (int c = 0; c < 2; ++c) leaf[a][b][c] = leaf_of(in, top[a][b][c], cell[a][b][c]);
    u64 words[PLANES][2][2];
#pragma unroll
    for (int k = 0; k < PLANES; ++k)
#pragma unroll
        for (int b = 0; b < 2; ++b)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int at = (z & 7) + k > 7 ? leaf[layers - 1][b][c] : leaf[0][b][c];
                words[k][b][c] = at >= 0 ? in.leaf[at * kWordsPerLeaf + ((z + k) & 7)].x : 0;
            }
    u32 taps = 0;
#pragma unroll
    for (int k = 0; k < PLANES; ++k) taps |= nine_bits(words[k], y, x) << k * 9;
    return taps;
}
