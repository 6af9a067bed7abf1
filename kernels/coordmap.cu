// Coordinate maps of every convolution of a frame, ready for the implicit GEMM.
//
// fine = stride * coarse + tap - padding on each axis, tap k = (kz * ky_n + ky) * kx_n + kx.
// Each output row has a bit mask of the taps whose input cell is active. The taps are divided into
// groups of 9 (one z plane) or 3 (one line along x), or make one group of all 27; for each group the
// rows that use it are ordered by their bits, in Gray-code order so that neighbouring patterns differ
// in one tap, and cut into tiles. A tile executes the union of its rows' taps; the table holds the
// input rows of each. A group of 27 taps is ordered by nine of them first, as the others are, and
// then by all of them inside each run of kChunk rows.
//
// The order of rows with equal bits is unspecified. It does not reach the results: a row is summed
// over its own taps in ascending order wherever it stands, and an absent tap adds an exact zero.
#include "levels.cuh"

constexpr int kKeyTaps = 9;              // taps that the counting sort of a group can look at
constexpr int kMaxGroups = 9;
constexpr int kMaxBins = 3 << kKeyTaps;  // of all groups
constexpr int kMaxTaps = 27;
constexpr int kMaxDomains = 32;
constexpr int kThreads = 256;
constexpr int kRowsPerThread = 4;
constexpr int kRowsPerUnit = kThreads * kRowsPerThread;
constexpr int kChunk = 1024;             // places that one block sorts

struct Domain {
    int out_level, in_level;
    int kz, ky, kx, stride, padding;
    int groups, group_taps;   // groups * group_taps == kz * ky * kx; 3, 9 or 27 taps a group
    int tile_rows;            // rows of a tile: 16 to 128
    int tile_capacity;        // tiles that fit
    u32* mask;                // (rows) taps of each row
    int* bins;                // (groups, patterns) rows of each pattern
    int* taken;               // (groups, patterns) places of each pattern given away
    int* order;               // (tiles, tile_rows) output row + group * row capacity, or -1
    int* table;               // (tiles, group_taps, tile_rows) input row or -1; used taps come first
    u32* tile_mask;           // (tiles) union of taps
    int* tile_rank;           // (tiles) tiles, dearest first
    int* counts;              // tiles, executed taps, useful taps
};

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
    int end[kMaxDomains];  // units of this domain and those before it
};
struct Unit {
    int domain, index;
};
template <typename Count>
__device__ __forceinline__ void list_units(Units& units, int n_domains, Count count) {
    if (threadIdx.x < 32) {
        int end = static_cast<int>(threadIdx.x) < n_domains ? count(threadIdx.x) : 0;
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
__device__ __forceinline__ void list_row_units(Units& units, const Level* levels, const Domain* domains, int n_domains) {
    list_units(units, n_domains, [&](int d) { return (rows_of(levels[domains[d].out_level]) + kRowsPerUnit - 1) / kRowsPerUnit; });
}

// Mask of each row, the number of rows of each pattern, and the useful taps of the domain.
extern "C" __global__ void __launch_bounds__(kThreads) mask_rows(const Level* levels, const Domain* domains, int n_domains) {
    __shared__ int bins[kMaxBins], useful;
    __shared__ Units units;
    list_row_units(units, levels, domains, n_domains);
    for (int turn = blockIdx.x;; turn += gridDim.x) {
        const Unit unit = unit_at(units, n_domains, turn);
        if (unit.domain < 0) return;
        const Domain d = domains[unit.domain];
        const Level out = levels[d.out_level], in = levels[d.in_level];
        const int rows = rows_of(out), patterns = patterns_of(d), used_bins = d.groups * patterns;
        for (int i = threadIdx.x; i < used_bins; i += kThreads) bins[i] = 0;
        if (threadIdx.x == 0) useful = 0;
        __syncthreads();
        int taps = 0;
        for (int i = 0; i < kRowsPerThread; ++i) {
            const int row = unit.index * kRowsPerUnit + i * kThreads + threadIdx.x;
            if (row >= rows) break;
            const int* at = out.coords + row * 3LL;
            const int z = first_z(d, at[0]), y = at[1] * d.stride - d.padding, x = at[2] * d.stride - d.padding;
            u32 mask = 0;
            for (int kz = 0; kz < d.kz; ++kz) {
                Window window;
                window.load(in, z + kz, y, x, 3, 3);
                mask |= (window.triple(0) | window.triple(1) << 3 | window.triple(2) << 6) << kz * 9;
            }
            d.mask[row] = mask;
            taps += __popc(mask);
            for (int g = 0; g < d.groups; ++g) atomicAdd(bins + g * patterns + pattern_of(d, mask, g), 1);
        }
        for (int s = 16; s; s /= 2) taps += __shfl_xor_sync(0xffffffffu, taps, s);
        if ((threadIdx.x & 31) == 0) atomicAdd(&useful, taps);
        __syncthreads();
        for (int i = threadIdx.x; i < used_bins; i += kThreads)
            if (bins[i]) atomicAdd(d.bins + i, bins[i]);
        if (threadIdx.x == 0) atomicAdd(d.counts + 2, useful);
        __syncthreads();
    }
}

// Puts each row into its place in every group that uses it; every group starts on a whole tile.
// A block counts its rows by pattern, takes a range of each pattern at once, then places them.
extern "C" __global__ void __launch_bounds__(kThreads) order_rows(const Level* levels, const Domain* domains, int n_domains) {
    __shared__ int counts[kMaxBins], places[kMaxBins + 1], shift[kMaxGroups];
    __shared__ Units units;
    list_row_units(units, levels, domains, n_domains);
    for (int turn = blockIdx.x;; turn += gridDim.x) {
        const Unit unit = unit_at(units, n_domains, turn);
        if (unit.domain < 0) return;
        const Domain d = domains[unit.domain];
        const Level out = levels[d.out_level];
        const int rows = rows_of(out), begin = unit.index * kRowsPerUnit + threadIdx.x;
        const int patterns = patterns_of(d), used_bins = d.groups * patterns;

        constexpr int per_thread = kMaxBins / kThreads;
        int sizes[per_thread], mine = 0;
#pragma unroll
        for (int i = 0; i < per_thread; ++i) {
            const int b = threadIdx.x * per_thread + i;
            sizes[i] = b < used_bins && is_placed(d, b & (patterns - 1)) ? d.bins[b] : 0;
            mine += sizes[i];
            counts[b] = 0;
        }
        int total, at = block_exclusive_sum<kThreads>(mine, &total);
#pragma unroll
        for (int i = 0; i < per_thread; at += sizes[i++]) places[threadIdx.x * per_thread + i] = at;
        if (threadIdx.x == 0) places[kMaxBins] = total;
        __syncthreads();
        if (threadIdx.x == 0) {
            int pad = 0;  // places skipped so that every group starts on a whole tile
            for (int g = 0; g < d.groups; ++g) {
                shift[g] = pad;
                const int end = places[(g + 1) * patterns < kMaxBins ? (g + 1) * patterns : kMaxBins] + pad;
                const int next = (end + d.tile_rows - 1) / d.tile_rows * d.tile_rows;
                if (unit.index == 0) {
                    for (int i = end; i < min(next, d.tile_capacity * d.tile_rows); ++i) d.order[i] = -1;
                    d.counts[0] = next / d.tile_rows;
                }
                pad += next - end;
            }
        }
        u32 mask[kRowsPerThread];
        int slot[kRowsPerThread][kMaxGroups];
#pragma unroll
        for (int i = 0; i < kRowsPerThread; ++i) {
            const int row = begin + i * kThreads;
            mask[i] = row < rows ? d.mask[row] : 0u;
#pragma unroll
            for (int g = 0; g < kMaxGroups; ++g) {
                slot[i][g] = -1;
                if (g >= d.groups || row >= rows) continue;
                const int pattern = pattern_of(d, mask[i], g);
                if (is_placed(d, pattern)) slot[i][g] = atomicAdd(counts + g * patterns + pattern, 1);
            }
        }
        __syncthreads();
        for (int b = threadIdx.x; b < used_bins; b += kThreads)
            if (counts[b]) places[b] += shift[b / patterns] + atomicAdd(d.taken + b, counts[b]);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kRowsPerThread; ++i)
#pragma unroll
            for (int g = 0; g < kMaxGroups; ++g) {
                if (slot[i][g] < 0) continue;
                const int place = places[g * patterns + pattern_of(d, mask[i], g)] + slot[i][g];
                if (place < d.tile_capacity * d.tile_rows) d.order[place] = begin + i * kThreads + g * out.row_capacity;
            }
        __syncthreads();
    }
}

// Groups of 27 taps: sorts each run of kChunk places by all taps, then by row. A bitonic network, since
// 1024 pairs of pattern and row fit a block.
extern "C" __global__ void __launch_bounds__(kThreads) sort_rows(const Level* levels, const Domain* domains, int n_domains) {
    __shared__ u64 keys[kChunk];
    __shared__ Units units;
    list_units(units, n_domains, [&](int i) {
        const Domain& d = domains[i];
        return d.group_taps > kKeyTaps ? (min(d.counts[0], d.tile_capacity) * d.tile_rows + kChunk - 1) / kChunk : 0;
    });
    for (int turn = blockIdx.x;; turn += gridDim.x) {
        const Unit unit = unit_at(units, n_domains, turn);
        if (unit.domain < 0) return;
        const Domain& d = domains[unit.domain];
        const int count = min(d.counts[0], d.tile_capacity) * d.tile_rows - unit.index * kChunk;
        int* order = d.order + unit.index * static_cast<long long>(kChunk);
        for (int i = threadIdx.x; i < kChunk; i += kThreads) {
            const int row = i < count ? order[i] : -1;  // empty places have the largest key
            keys[i] = row < 0 ? ~0ull : static_cast<u64>(cube_rank(d.mask[row])) << 32 | static_cast<u32>(row);
        }
        for (int size = 2; size <= kChunk; size *= 2)
            for (int step = size / 2; step; step /= 2) {
                __syncthreads();
                for (int i = threadIdx.x; i < kChunk / 2; i += kThreads) {
                    const int left = (i & ~(step - 1)) * 2 + (i & (step - 1));
                    const u64 a = keys[left], b = keys[left + step];
                    if ((a > b) == ((left & size) == 0)) keys[left] = b, keys[left + step] = a;
                }
            }
        __syncthreads();
        for (int i = threadIdx.x; i < min(count, kChunk); i += kThreads) order[i] = static_cast<int>(static_cast<u32>(keys[i]));
        __syncthreads();
    }
}

// One warp a tile: union of taps and the input rows of each used tap.
extern "C" __global__ void __launch_bounds__(kThreads, 4) fill_tiles(const Level* levels, const Domain* domains, int n_domains) {
    __shared__ Units units;
    list_units(units, n_domains, [&](int d) { return min(domains[d].counts[0], domains[d].tile_capacity); });
    const int lane = threadIdx.x & 31, warps = gridDim.x * (kThreads / 32);
    for (int turn = blockIdx.x * (kThreads / 32) + (threadIdx.x >> 5);; turn += warps) {
        const Unit unit = unit_at(units, n_domains, turn);
        if (unit.domain < 0) return;
        const Domain& d = domains[unit.domain];
        const Level &out = levels[d.out_level], &in = levels[d.in_level];
        const int tile = unit.index;
        const int* order = d.order + static_cast<long long>(tile) * d.tile_rows;
        const int group = order[0] / out.row_capacity;  // the first place of a tile is never empty
        const int base = group * out.row_capacity, first_tap = group * d.group_taps;
        u32 bits = 0;
        for (int r = lane; r < d.tile_rows; r += 32)
            if (order[r] >= 0) bits |= group_bits(d, d.mask[order[r] - base], group);
        for (int s = 16; s; s /= 2) bits |= __shfl_xor_sync(0xffffffffu, bits, s);
        if (lane == 0) d.tile_mask[tile] = bits << first_tap;
        const int lines = min(d.group_taps, 9) / 3, kz = first_tap / 9, ky = first_tap / 3 % 3;
        for (int r = lane; r < d.tile_rows; r += 32) {
            int* table = d.table + static_cast<long long>(tile) * d.tile_rows * d.group_taps + r;
            const bool present = order[r] >= 0;
            const int row = present ? order[r] - base : 0;
            const u32 mine = present ? group_bits(d, d.mask[row], group) : 0u;
            const int* at = out.coords + row * 3LL;
            for (int plane = 0; bits >> plane * 9; ++plane) {
                Window window;
                if (mine >> plane * 9 & 511u)
                    window.load(in, first_z(d, at[0]) + kz + plane, at[1] * d.stride - d.padding + ky, at[2] * d.stride - d.padding, lines, 3);
                for (u32 rest = bits >> plane * 9 & 511u; rest; rest &= rest - 1, table += d.tile_rows) {
                    const int tap = __ffs(rest) - 1;
                    const int source = mine >> (plane * 9 + tap) & 1u ? window.row(tap / 3, tap % 3) : -1;
                    *table = source < in.row_capacity ? source : -1;
                }
            }
        }
    }
}

// grid (domains): dearest tiles first, so that no block starts a long tile while others finish; and
// the executed taps of the domain.
extern "C" __global__ void __launch_bounds__(kThreads) rank_tiles(const Domain* domains) {
    __shared__ int tiles_of[kMaxTaps + 1], next[kMaxTaps + 1];
    const Domain d = domains[blockIdx.x];
    const int tiles = min(d.counts[0], d.tile_capacity);
    if (threadIdx.x <= kMaxTaps) tiles_of[threadIdx.x] = 0;
    __syncthreads();
    for (int tile = threadIdx.x; tile < tiles; tile += kThreads) atomicAdd(tiles_of + __popc(d.tile_mask[tile]), 1);
    __syncthreads();
    if (threadIdx.x <= kMaxTaps) {
        int before = 0;
        for (int taps = threadIdx.x + 1; taps <= kMaxTaps; ++taps) before += tiles_of[taps];
        next[threadIdx.x] = before;
    }
    if (threadIdx.x == 0) {
        int executed = 0;
        for (int taps = 1; taps <= kMaxTaps; ++taps) executed += taps * tiles_of[taps] * d.tile_rows;
        d.counts[1] = executed;
    }
    __syncthreads();
    for (int tile = threadIdx.x; tile < tiles; tile += kThreads)
        d.tile_rank[atomicAdd(next + __popc(d.tile_mask[tile]), 1)] = tile;
}
