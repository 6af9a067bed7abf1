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
#include "coordmap.cuh"

constexpr int kThreads = 256, kRankThreads = 1024;
constexpr int kMaxTileRows = 128;
constexpr int kAtOnce = 3;               // groups whose places are asked for together
constexpr int kChunk = 1024;             // places that one block sorts

// Mask of each row, the number of rows of each pattern, and the useful taps of the domain. A unit adds
// its rows of a pattern at once, and keeps how many there were.
extern "C" __global__ void __launch_bounds__(kThreads)
mask_rows(const __grid_constant__ Levels levels, const __grid_constant__ Domains domains, int n_domains) {
    begin_dependent();
    __shared__ int bins[kMaxBins], useful;
    __shared__ Units units;
    const int unit_rows = list_row_units(units, levels, domains, n_domains);
    for (int turn = blockIdx.x;; turn += gridDim.x) {
        const Unit unit = unit_at(units, n_domains, turn);
        if (unit.domain < 0) return;
        const Domain& d = domains.at[unit.domain];
        const Level &out = levels.at[d.out_level], &in = levels.at[d.in_level];
        const int rows = rows_of(out), patterns = patterns_of(d), used_bins = d.groups * patterns;
        for (int i = threadIdx.x; i < kMaxBins; i += kThreads) bins[i] = 0;
        if (threadIdx.x == 0) useful = 0;
        __syncthreads();
        int taps = 0;
        const int first = unit.index * unit_rows, end = min(first + unit_rows, rows);
        for (int row = first + threadIdx.x; row < end; row += kThreads) {
            const int* at = out.coords + row * 3LL;
            const int z = first_z(d, at[0]), y = at[1] * d.stride - d.padding, x = at[2] * d.stride - d.padding;
            const u32 mask = d.kz > 1 ? taps_at<3>(in, z, y, x) : taps_at<1>(in, z, y, x);
            d.mask[row] = mask;
            taps += __popc(mask);
            for (int g = 0; g < d.groups; ++g) {
                const int pattern = pattern_of(d, mask, g);
                if (is_placed(d, pattern)) atomicAdd(bins + g * patterns + pattern, 1);
            }
        }
        for (int s = 16; s; s /= 2) taps += __shfl_xor_sync(0xffffffffu, taps, s);
        if ((threadIdx.x & 31) == 0) atomicAdd(&useful, taps);
        __syncthreads();
        int* before = d.before + unit.index * static_cast<long long>(used_bins);
        int earlier[kMaxBins / kThreads];
#pragma unroll
        for (int i = 0; i < kMaxBins / kThreads; ++i) {
            const int b = threadIdx.x + i * kThreads;
            earlier[i] = bins[b] ? atomicAdd(d.bins + b, bins[b]) : 0;
        }
#pragma unroll
        for (int i = 0; i < kMaxBins / kThreads; ++i) {
            const int b = threadIdx.x + i * kThreads;
            if (bins[b]) before[b] = earlier[i];
        }
        if (threadIdx.x == 0) atomicAdd(d.counts + 2, useful);
        __syncthreads();
    }
}

// Puts each row into its place in every group that uses it; every group starts on a whole tile. The
// patterns of the rows of a tile are known from their numbers alone, so the units of a domain share
// the unions of taps of its tiles too, except for groups of 27, whose rows are yet to be sorted.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
order_rows(const __grid_constant__ Levels levels, const __grid_constant__ Domains domains, int n_domains) {
    begin_dependent();
    __shared__ int places[kMaxBins + 1];  // of the next row of each pattern
    __shared__ int shift[kMaxGroups], end[kMaxGroups], next[kMaxGroups];
    __shared__ Units units;
    const int unit_rows = list_row_units(units, levels, domains, n_domains);
    for (int turn = blockIdx.x;; turn += gridDim.x) {
        const Unit unit = unit_at(units, n_domains, turn);
        if (unit.domain < 0) return;
        const Domain& d = domains.at[unit.domain];
        const Level& out = levels.at[d.out_level];
        const int row_capacity = out.row_capacity, groups = d.groups;
        const int rows = rows_of(out), first = unit.index * unit_rows + threadIdx.x, last = min(unit.index * unit_rows + unit_rows, rows);
        u32 ahead = first < last ? d.mask[first] : 0u;  // of the next row
        const int patterns = patterns_of(d), used_bins = groups * patterns, tile_bits = __ffs(d.tile_rows) - 1;
        const int* before = d.before + unit.index * static_cast<long long>(used_bins);
        constexpr int per_thread = kMaxBins / kThreads;
        int sizes[per_thread], earlier[per_thread], mine = 0;
#pragma unroll
        for (int i = 0; i < per_thread; ++i) {
            const int b = threadIdx.x * per_thread + i;
            sizes[i] = b < used_bins ? d.bins[b] : 0;
            earlier[i] = b < used_bins ? before[b] : 0;  // anything where the unit has no such row
        }
#pragma unroll
        for (int i = 0; i < per_thread; ++i) mine += sizes[i];
        int total, at = block_exclusive_sum<kThreads>(mine, &total);
#pragma unroll
        for (int i = 0; i < per_thread; at += sizes[i++]) places[threadIdx.x * per_thread + i] = at;
        if (threadIdx.x == 0) places[kMaxBins] = total;
        __syncthreads();
        if (threadIdx.x == 0) {
            int pad = 0;  // places skipped so that every group starts on a whole tile
            for (int g = 0; g < groups; ++g) {
                shift[g] = pad;
                end[g] = places[(g + 1) * patterns] + pad;
                next[g] = (end[g] + d.tile_rows - 1) & -d.tile_rows;
                pad += next[g] - end[g];
            }
            if (unit.index == 0) d.counts[0] = next[groups - 1] / d.tile_rows;
        }
        __syncthreads();
        const int tiles = d.group_taps > kKeyTaps ? 0 : min(next[groups - 1] >> tile_bits, d.tile_capacity);
        const int units_here = (rows + unit_rows - 1) / unit_rows;
        const int tile0 = static_cast<int>(static_cast<long long>(tiles) * unit.index / units_here);
        const int tile1 = static_cast<int>(static_cast<long long>(tiles) * (unit.index + 1) / units_here);
        for (int tile = tile0 + threadIdx.x; tile < tile1; tile += kThreads) d.tile_mask[tile] = 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < per_thread; ++i) {
            const int b = threadIdx.x * per_thread + i;
            if (b >= used_bins || !sizes[i]) continue;
            const int group = b / patterns, rank = b % patterns, place = places[b] + shift[group];
            places[b] = place + earlier[i];
            const u32 bits = static_cast<u32>(rank ^ rank >> 1) << group * d.group_taps;
            const int end_tile = min((place + sizes[i] - 1 >> tile_bits) + 1, tile1);
            for (int tile = max(place >> tile_bits, tile0); tile < end_tile; ++tile) atomicOr(d.tile_mask + tile, bits);
        }
        __syncthreads();
        const int fits = d.tile_capacity * d.tile_rows;
        for (int row = first; row < last; row += kThreads) {
            const u32 mask = ahead;
            if (row + kThreads < last) ahead = d.mask[row + kThreads];
            for (int g0 = 0; g0 < groups; g0 += kAtOnce) {
                int place[kAtOnce];
#pragma unroll
                for (int j = 0; j < kAtOnce; ++j) {
                    const int g = g0 + j, pattern = g < groups ? pattern_of(d, mask, g) : 0;
                    place[j] = g < groups && is_placed(d, pattern) ? atomicAdd(places + g * patterns + pattern, 1) : fits;
                }
#pragma unroll
                for (int j = 0; j < kAtOnce; ++j)
                    if (place[j] < fits) d.order[place[j]] = row + (g0 + j) * row_capacity;
            }
        }
        if (unit.index == 0)
            for (int g = 0; g < groups; ++g)
                for (int i = end[g] + threadIdx.x; i < min(next[g], fits); i += kThreads) d.order[i] = -1;
        __syncthreads();
    }
}

// Groups of 27 taps: sorts each run of kChunk places by all taps, then by row, in a bitonic network. A
// thread holds four neighbours, so most steps stay inside a warp.
constexpr int kHeld = kChunk / kThreads;

__device__ __forceinline__ void keep(u64& mine, u64 other, bool smaller) {
    if ((other < mine) == smaller) mine = other;
}

template <int STEP>
__device__ __forceinline__ void exchange(u64 (&held)[kHeld], int first, int size) {
#pragma unroll
    for (int e = 0; e < kHeld; ++e) {
        if (e & STEP) continue;
        const u64 a = held[e], b = held[e ^ STEP];
        const bool swap = (b < a) == (((first + e) & size) == 0);
        held[e] = swap ? b : a, held[e ^ STEP] = swap ? a : b;
    }
}

extern "C" __global__ void __launch_bounds__(kThreads)
sort_rows(const __grid_constant__ Levels levels, const __grid_constant__ Domains domains, int n_domains) {
    begin_dependent();
    __shared__ u64 keys[kHeld][kThreads];
    __shared__ Units units;
    int chunks = 0;
    if (threadIdx.x < n_domains) {
        const Domain& d = domains.at[threadIdx.x];
        if (d.group_taps > kKeyTaps) chunks = (min(d.counts[0], d.tile_capacity) * d.tile_rows + kChunk - 1) / kChunk;
    }
    list_units(units, chunks);
    for (int turn = blockIdx.x;; turn += gridDim.x) {
        const Unit unit = unit_at(units, n_domains, turn);
        if (unit.domain < 0) return;
        const Domain& d = domains.at[unit.domain];
        const int first = threadIdx.x * kHeld, count = min(d.counts[0], d.tile_capacity) * d.tile_rows - unit.index * kChunk;
        int* order = d.order + unit.index * static_cast<long long>(kChunk);
        u64 held[kHeld];
#pragma unroll
        for (int e = 0; e < kHeld; ++e) {
            const int row = first + e < count ? order[first + e] : -1;  // empty places have the largest key
            held[e] = row < 0 ? ~0ull : static_cast<u64>(cube_rank(d.mask[row])) << 32 | static_cast<u32>(row);
        }
        for (int size = 2; size <= kChunk; size *= 2)
            for (int step = size / 2; step; step /= 2) {
                const bool smaller = ((first & step) == 0) == ((first & size) == 0);
                if (step >= 32 * kHeld) {
#pragma unroll
                    for (int e = 0; e < kHeld; ++e) keys[e][threadIdx.x] = held[e];
                    __syncthreads();
#pragma unroll
                    for (int e = 0; e < kHeld; ++e) keep(held[e], keys[e][threadIdx.x ^ step / kHeld], smaller);
                    __syncthreads();
                } else if (step >= kHeld) {
#pragma unroll
                    for (int e = 0; e < kHeld; ++e) keep(held[e], __shfl_xor_sync(0xffffffffu, held[e], step / kHeld), smaller);
                } else if (step == 2) {
                    exchange<2>(held, first, size);
                } else {
                    exchange<1>(held, first, size);
                }
            }
#pragma unroll
        for (int e = 0; e < kHeld; ++e)
            if (first + e < count) order[first + e] = static_cast<int>(static_cast<u32>(held[e]));
    }
}

// The tiles of a domain, dearest first, so that no block starts a long tile while others finish; and its
// executed taps.
__device__ __forceinline__ void rank_by_taps(const Domain& d) {
    __shared__ int tiles_of[kMaxTaps + 1], next[kMaxTaps + 1];
    const int tiles = min(d.counts[0], d.tile_capacity), threads = blockDim.x;
    if (threadIdx.x <= kMaxTaps) tiles_of[threadIdx.x] = 0;
    __syncthreads();
    for (int tile = threadIdx.x; tile < tiles; tile += threads) atomicAdd(tiles_of + __popc(d.tile_mask[tile]), 1);
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
    u32 ahead = threadIdx.x < tiles ? d.tile_mask[threadIdx.x] : 0u;  // of the next tile
    for (int tile = threadIdx.x; tile < tiles; tile += threads) {
        const u32 mask = ahead;
        if (tile + threads < tiles) ahead = d.tile_mask[tile + threads];
        d.tile_rank[atomicAdd(next + __popc(mask), 1)] = tile;
    }
}

// Writes the input rows of one place of a tile for the taps of the tile in one plane, in ascending
// order; returns where those of the next plane go.
__device__ __forceinline__ int* fill_plane(const Level& in, int* entry, int tile_rows, u32 tile, u32 mine, int z, int y, int x, int lines) {
    Window window;
    window.load(in, mine ? z : -1, y, x, lines, 3);  // a place that has no tap here needs no look-up
    LineRows rows(window);
    const int capacity = in.row_capacity;
#pragma unroll
    for (int dy = 0; dy < 3; ++dy) {
        if (dy >= lines) break;
        rows.start(dy);
#pragma unroll
        for (int dx = 0; dx < 3; ++dx) {
            const u32 active = mine >> (dy * 3 + dx) & 1u;
            const int row = rows.take(dx, active);
            if (!(tile >> (dy * 3 + dx) & 1u)) continue;
            *entry = active && row < capacity ? row : -1;
            entry += tile_rows;
        }
    }
    return entry;
}

// One warp a tile: the input rows of each used tap, and, for groups of 27, the union of taps. The first
// blocks rank the tiles of a domain each, whose union is known.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
fill_tiles(const __grid_constant__ Levels levels, const __grid_constant__ Domains domains, int n_domains) {
    begin_dependent();
    __shared__ Units units;
    const int fillers = static_cast<int>(gridDim.x) - n_domains, block = static_cast<int>(blockIdx.x) - n_domains;
    if (block < 0) {
        const Domain& d = domains.at[blockIdx.x];
        if (d.group_taps <= kKeyTaps) rank_by_taps(d);
        return;
    }
    list_units(units, threadIdx.x < n_domains ? min(domains.at[threadIdx.x].counts[0], domains.at[threadIdx.x].tile_capacity) : 0);
    const int lane = threadIdx.x & 31, warps = fillers * (kThreads / 32);
    for (int turn = block * (kThreads / 32) + (threadIdx.x >> 5);; turn += warps) {
        const Unit unit = unit_at(units, n_domains, turn);
        if (unit.domain < 0) return;
        const Domain& d = domains.at[unit.domain];
        const Level &out = levels.at[d.out_level], &in = levels.at[d.in_level];
        const int tile_rows = d.tile_rows, group_taps = d.group_taps, stride = d.stride, padding = d.padding;
        const int* order = d.order + static_cast<long long>(unit.index) * tile_rows;
        const int group = order[0] / out.row_capacity;  // the first place of a tile is never empty
        const int base = group * out.row_capacity, first_tap = group * group_taps;
        int row[kMaxTileRows / 32];
        u32 mine[kMaxTileRows / 32], bits = 0;  // taps of a row of this lane; of the tile
#pragma unroll
        for (int i = 0; i < kMaxTileRows / 32; ++i) row[i] = i * 32 + lane < tile_rows ? order[i * 32 + lane] - base : -1;
#pragma unroll
        for (int i = 0; i < kMaxTileRows / 32; ++i) {
            mine[i] = row[i] >= 0 ? group_bits(d, d.mask[row[i]], group) : 0u;
            bits |= mine[i];
        }
        const int* at = out.coords + max(row[0], 0) * 3LL;
        int z = at[0], y = at[1], x = at[2];
        if (group_taps > kKeyTaps) {
            for (int s = 16; s; s /= 2) bits |= __shfl_xor_sync(0xffffffffu, bits, s);
            if (lane == 0) d.tile_mask[unit.index] = bits;
        } else {
            bits = d.tile_mask[unit.index] >> first_tap;
        }
        const int lines = min(group_taps, 9) / 3, kz = first_tap / 9 + (d.kz > 1 ? -padding : 0), ky = first_tap / 3 % 3 - padding;
        const int z_stride = d.kz > 1 ? stride : 1;
        int* table = d.table + static_cast<long long>(unit.index) * tile_rows * group_taps + lane;
#pragma unroll
        for (int i = 0; i < kMaxTileRows / 32; ++i) {
            if (i * 32 + lane >= tile_rows) break;
            const int first_z = z * z_stride + kz, first_y = y * stride + ky, first_x = x * stride - padding;
            if (i + 1 < kMaxTileRows / 32 && row[i + 1] >= 0) {  // in flight beside the look-ups of this row
                at = out.coords + row[i + 1] * 3LL;
                z = at[0], y = at[1], x = at[2];
            }
            int* entry = table + i * 32;
            for (int plane = 0; bits >> plane * 9; ++plane)
                entry = fill_plane(in, entry, tile_rows, bits >> plane * 9 & 511u, mine[i] >> plane * 9 & 511u,
                                   first_z + plane, first_y, first_x, lines);
        }
    }
}

// Groups of 27 taps: ranks their tiles. grid (domains).
extern "C" __global__ void __launch_bounds__(kRankThreads) rank_tiles(const __grid_constant__ Domains domains) {
    begin_dependent();
    const Domain& d = domains.at[blockIdx.x];
    if (d.group_taps > kKeyTaps) rank_by_taps(d);
}
