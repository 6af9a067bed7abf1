// Statistics of the active values of a NanoVDB grid of float32 or int32, for each node and the grid.
//
//   leaf_stats    a warp a leaf
//   lower_stats   a block a lower node, over the records of its leaves and its active tiles
//   top_stats     the same one level up; the last block goes on with the tiles of the root
//
// Every node owns a record, so a node without children writes its own too. The order of every sum is
// fixed and each operation rounded by itself, as core/reference/grid_stats.py says: the records are
// its records bit by bit. Values that are not numbers are counted apart. Extremes are compared as
// integers that are ordered as the values are; -0 is less than +0.
//
// With `write` the nodes get their statistics and boxes too. A node without active values gets the
// background and keeps its box, which also says where it lies.
//
// Estimate: the leaves are read once, 2144 bytes each, and 64 bytes a node are written and read again;
// the rest is small. Float64 adds 3 operations a voxel: on chips with few such units `moments` = 0
// leaves means and deviations out. By design a warp loads its leaf at once and then sums in a fixed
// order, twice, the second time with the mean of the first: no load is in flight meanwhile, so that
// only other warps of the multiprocessor keep the memory busy. Integer units decide the rest: a value
// takes 7 of their operations without moments.
#include "grid_ops.cuh"

#define LEAF_THREADS 256
#if __CUDA_ARCH__ >= 1000
#define LEAF_BLOCKS 3  // of leaves that a multiprocessor runs at once: all that need no spills
#else
#define LEAF_BLOCKS 4
#endif
#define LOWER_LANES 128
#define TOP_LANES 512
#ifndef LOWER_BLOCKS
#if __CUDA_ARCH__ >= 1000
#define LOWER_BLOCKS 4  // of lower nodes that a multiprocessor runs at once, without spills
#else
#define LOWER_BLOCKS 5
#endif
#endif
#ifndef LOWER_AHEAD
#define LOWER_AHEAD 2  // records that a thread of an internal node has in flight
#endif
#ifndef TOP_AHEAD
#define TOP_AHEAD 2
#endif
#define WINDOW 4096  // slots of an internal node that are listed at once
#define LEAF_BYTES 2144
#define ROOT_BYTES 64
#define NONE_LEAST 0x7fffffff
#define NONE_MOST (-0x7fffffff - 1)

typedef unsigned short u16;

struct GridStats {
    u32* grid;
    u64 leaf, lower, upper;  // bytes where nodes begin
    u32 leaves, lowers, uppers, tiles;
    u64* records;  // of leaves, lower nodes, upper nodes, the grid; a word follows
    int is_float, moments, write;
};

struct __align__(16) Stats {  // 64 bytes: STATS of core/grid_types.py
    u64 count, nans;
    double mean, m2;
    int least, most;
    int first[3], last[3];
};

__device__ __forceinline__ Stats nothing() {
    Stats s;
    s.count = s.nans = 0;
    s.mean = s.m2 = 0.;
    s.least = NONE_LEAST;
    s.most = NONE_MOST;
    for (int a = 0; a < 3; ++a) s.first[a] = NONE_LEAST, s.last[a] = NONE_MOST;
    return s;
}
__device__ __forceinline__ bool is_number(const GridStats& m, u32 bits) {
    return !m.is_float || (bits & 0x7fffffffu) <= 0x7f800000u;
}
__device__ __forceinline__ int key_of(const GridStats& m, u32 bits) {
    const int key = static_cast<int>(bits);
    return m.is_float ? key ^ (key >> 31 & 0x7fffffff) : key;
}
__device__ __forceinline__ u32 bits_of(const GridStats& m, int key) {
    return static_cast<u32>(key_of(m, static_cast<u32>(key)));
}
template <bool IS_FLOAT>
__device__ __forceinline__ double number_of(u32 bits) {
    return IS_FLOAT ? static_cast<double>(__uint_as_float(bits)) : static_cast<double>(static_cast<int>(bits));
}
__device__ __forceinline__ double number_of(const GridStats& m, u32 bits) {
    return m.is_float ? number_of<true>(bits) : number_of<false>(bits);
}

// A result that is not a number has the same bits everywhere.
__device__ __forceinline__ double one_nan(double v) { return v != v ? __uint_as_float(0x7fc00000u) : v; }
__device__ __forceinline__ u32 float_bits(double v) { return v != v ? 0x7fc00000u : __float_as_uint(static_cast<float>(v)); }

// Chan, Golub and LeVeque: the statistics of both.
__device__ __forceinline__ Stats merge(const GridStats& m, const Stats& a, const Stats& b) {
    Stats s;
    s.count = a.count + b.count;
    s.nans = a.nans + b.nans;
    s.mean = a.count ? a.mean : b.mean;
    s.m2 = a.count ? a.m2 : b.m2;
    if (m.moments && a.count && b.count) {
        const double share = __ddiv_rn(static_cast<double>(b.count), static_cast<double>(s.count));
        const double delta = __dsub_rn(b.mean, a.mean);
        const double weight = __dmul_rn(static_cast<double>(a.count), share);
        s.mean = one_nan(__dadd_rn(a.mean, __dmul_rn(delta, share)));
        s.m2 = one_nan(__dadd_rn(__dadd_rn(a.m2, b.m2), __dmul_rn(__dmul_rn(delta, delta), weight)));
    }
    s.least = min(a.least, b.least);
    s.most = max(a.most, b.most);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        s.first[i] = min(a.first[i], b.first[i]);
        s.last[i] = max(a.last[i], b.last[i]);
    }
    return s;
}

// An active tile: edge^3 voxels of one value.
__device__ __forceinline__ Stats tile_stats(const GridStats& m, u32 bits, const int* origin, int edge) {
    Stats s = nothing();
    const u64 voxels = static_cast<u64>(edge) * edge * edge;
    if (is_number(m, bits)) {
        s.count = voxels;
        s.mean = m.moments ? number_of(m, bits) : 0.;
        s.least = s.most = key_of(m, bits);
    } else {
        s.nans = voxels;
    }
    for (int a = 0; a < 3; ++a) s.first[a] = origin[a], s.last[a] = origin[a] + edge - 1;
    return s;
}

__device__ __forceinline__ u32 background(const GridStats& m) { return m.grid[HEAD_BYTES / 4 + 7]; }

// Least, most, mean, deviation, as nodes hold them.
__device__ __forceinline__ void write_stats(const GridStats& m, const Stats& s, u32* to) {
    const u32 none = background(m);
    to[0] = s.count ? bits_of(m, s.least) : none;
    to[1] = s.count ? bits_of(m, s.most) : none;
    if (!m.moments) return;
    const double variance = s.count ? __ddiv_rn(s.m2, static_cast<double>(s.count)) : 0.;
    to[2] = float_bits(s.count ? s.mean : number_of(m, none));
    to[3] = float_bits(sqrt(variance));
}

__device__ __forceinline__ Stats* record(const GridStats& m, u64 slot) {
    return reinterpret_cast<Stats*>(m.records) + slot;
}

// How many upper nodes are done; the first kernel sets it to 0.
__device__ __forceinline__ u32* done(const GridStats& m) {
    return reinterpret_cast<u32*>(record(m, static_cast<u64>(m.leaves) + m.lowers + m.uppers + 1));
}

// ---- leaves -----------------------------------------------------------------------------------------

__device__ __forceinline__ double warp_sum(double v) {
    for (int d = 16; d; d /= 2) v = __dadd_rn(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}

// The box of a leaf from its mask: lane l < 16 holds word l, of x = l / 2 and y of 4 (l % 2) to 3 more.
__device__ __forceinline__ void leaf_box(u32 word, const int* origin, Stats* s) {
    const u32 lines = __ballot_sync(0xffffffffu, word != 0);
    u32 half = word;
    for (int d = 2; d < 16; d *= 2) half |= __shfl_xor_sync(0xffffffffu, half, d);
    const u32 low = __shfl_sync(0xffffffffu, half, 0), high = __shfl_sync(0xffffffffu, half, 1);
    if (!lines) return;
    u32 z = low | high;
    z = (z | z >> 8 | z >> 16 | z >> 24) & 255;
    s->first[0] = origin[0] + (__ffs(lines) - 1) / 2;
    s->last[0] = origin[0] + (31 - __clz(lines)) / 2;
    s->first[1] = origin[1] + (low ? (__ffs(low) - 1) / 8 : 4 + (__ffs(high) - 1) / 8);
    s->last[1] = origin[1] + (high ? 4 + (31 - __clz(high)) / 8 : (31 - __clz(low)) / 8);
    s->first[2] = origin[2] + __ffs(z) - 1;
    s->last[2] = origin[2] + 31 - __clz(z);
}

// `packed`: extent of the box and flags, as they were.
__device__ __forceinline__ void write_leaf(const GridStats& m, const Stats& s, u32* leaf, u32 packed) {
    const bool some = s.first[0] <= s.last[0];
    u32 flags = packed >> 24 & ~2u;
    packed &= 0x00ffffffu;
    if (some) {
        for (int a = 0; a < 3; ++a) leaf[a] = s.first[a];
        packed = (s.last[0] - s.first[0]) | (s.last[1] - s.first[1]) << 8 | (s.last[2] - s.first[2]) << 16;
        flags |= 2u;
    }
    leaf[3] = packed | flags << 24;
    write_stats(m, s, leaf + 20);
}

// Reductions over a warp, in all lanes.
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ u32 warp_add(u32 v) { return __reduce_add_sync(0xffffffffu, v); }
__device__ __forceinline__ int warp_min(int v) { return __reduce_min_sync(0xffffffffu, v); }
__device__ __forceinline__ int warp_max(int v) { return __reduce_max_sync(0xffffffffu, v); }
#else
__device__ __forceinline__ u32 warp_add(u32 v) {
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
__device__ __forceinline__ int warp_min(int v) {
    for (int d = 16; d; d /= 2) v = min(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}
__device__ __forceinline__ int warp_max(int v) {
    for (int d = 16; d; d /= 2) v = max(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}
#endif

// A leaf by a warp: lane l has the values 32 k + l, and all words of the mask.
template <bool IS_FLOAT>
__device__ __forceinline__ void one_leaf(const GridStats& m, u32 i) {
    const int lane = threadIdx.x & 31;
    u32* leaf = at_byte<u32>(m.grid, m.leaf + static_cast<u64>(i) * LEAF_BYTES);
    u32 bits[16];
#pragma unroll
    for (int k = 0; k < 16; ++k) bits[k] = leaf[24 + 32 * k + lane];
    const uint4 place = *at_byte<uint4>(leaf, 0);
    const u32 word = lane < 16 ? leaf[4 + lane] : 0u;
    const u32 mine = 1u << lane;
    u32 numbers = 0, nans = 0;
    Stats s = nothing();
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        const uint4 four = at_byte<uint4>(leaf, 16)[q];  // one address for the whole warp
        const u32 words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int k = 4 * q + j;
            const int key = static_cast<int>(bits[k]) ^ (IS_FLOAT ? static_cast<int>(bits[k]) >> 31 & 0x7fffffff : 0);
            const float value = __uint_as_float(bits[k]);
            if (!(words[j] & mine)) continue;
            if (IS_FLOAT && value != value) {
                ++nans;
                continue;
            }
            s.least = min(s.least, key);
            s.most = max(s.most, key);
            numbers |= 1u << k;
        }
    }
    const u32 counts = warp_add(static_cast<u32>(__popc(numbers)) | nans << 16);
    s.count = counts & 0xffffu;
    s.nans = counts >> 16;
    s.least = warp_min(s.least);
    s.most = warp_max(s.most);
    if (m.moments && s.count) {  // the same in all lanes
        double sum = 0.;
#pragma unroll
        for (int k = 0; k < 16; ++k)
            if (numbers >> k & 1) sum = __dadd_rn(sum, number_of<IS_FLOAT>(bits[k]));
        s.mean = one_nan(__ddiv_rn(warp_sum(sum), static_cast<double>(s.count)));
        sum = 0.;
#pragma unroll
        for (int k = 0; k < 16; ++k) {
            const double away = __dsub_rn(number_of<IS_FLOAT>(bits[k]), s.mean);
            if (numbers >> k & 1) sum = __dadd_rn(sum, __dmul_rn(away, away));
        }
        s.m2 = one_nan(warp_sum(sum));
    }
    const int origin[3] = {static_cast<int>(place.x) & ~7, static_cast<int>(place.y) & ~7, static_cast<int>(place.z) & ~7};
    leaf_box(word, origin, &s);
    __syncwarp();  // others have read the head of the leaf, which is written now
    if (lane) return;
    *record(m, i) = s;
    if (m.write) write_leaf(m, s, leaf, place.w);
}

extern "C" __global__ void __launch_bounds__(LEAF_THREADS, LEAF_BLOCKS) leaf_stats(const GridStats m) {
    begin_dependent();
    if (blockIdx.x == 0 && threadIdx.x == 0) *done(m) = 0;
    const u32 i = blockIdx.x * (LEAF_THREADS / 32) + threadIdx.x / 32;
    if (i >= m.leaves) return;
    if (m.is_float)
        one_leaf<true>(m, i);
    else
        one_leaf<false>(m, i);
}

// ---- internal nodes and the root --------------------------------------------------------------------

__device__ __forceinline__ Stats from_lane(const GridStats& m, const Stats& s, int away) {
    Stats r = s;
    r.count = __shfl_down_sync(0xffffffffu, s.count, away);
    r.nans = __shfl_down_sync(0xffffffffu, s.nans, away);
    if (m.moments) {
        r.mean = __shfl_down_sync(0xffffffffu, s.mean, away);
        r.m2 = __shfl_down_sync(0xffffffffu, s.m2, away);
    }
    r.least = __shfl_down_sync(0xffffffffu, s.least, away);
    r.most = __shfl_down_sync(0xffffffffu, s.most, away);
#pragma unroll
    for (int a = 0; a < 3; ++a) {
        r.first[a] = __shfl_down_sync(0xffffffffu, s.first[a], away);
        r.last[a] = __shfl_down_sync(0xffffffffu, s.last[a], away);
    }
    return r;
}

// Merges what the first `used` threads of a block hold in pairs LANES / 2, ..., 2, 1 apart, into
// thread 0. A step in which no pair has a second thread is left out: it would change nothing.
template <int LANES>
__device__ __forceinline__ Stats merge_block(const GridStats& m, Stats mine, int used) {
    __shared__ Stats shared_stats[LANES];
    const int thread = threadIdx.x;
    for (int half = LANES / 2; half >= 32; half /= 2) {
        if (used <= half) continue;
        if (half <= thread && thread < 2 * half) shared_stats[thread] = mine;
        __syncthreads();
        if (thread < half) mine = merge(m, mine, shared_stats[thread + half]);
    }
    if (thread >= 32) return mine;
    for (int d = 16; d; d /= 2)
        if (used > d) mine = merge(m, mine, from_lane(m, mine, d));
    return mine;
}

// A child or an active tile of an internal node.
struct Entry {
    u32 slot;  // with CHILD, or NO_ENTRY
    u64 word;  // of the table
};
#define CHILD 0x8000u
#define NO_ENTRY 0xffffffffu

// Lists the used slots of a node in ascending order, those of number `window` and after, as long as
// there is room. A thread brings WORDS words of the masks and the number of used slots before each.
template <int WORDS>
__device__ __forceinline__ void list_slots(const u32 (&used)[WORDS], const u32 (&child)[WORDS],
                                           const int (&before)[WORDS], int window, u16* list) {
    const int lane = threadIdx.x & 31, first_thread = threadIdx.x & ~31;
#pragma unroll
    for (int j = 0; j < WORDS; ++j)
        for (u32 left = __ballot_sync(0xffffffffu, used[j] != 0); left;) {
#pragma unroll
            for (int k = 0; k < 4; ++k, left &= left - 1) {  // words whose lanes do not wait for each other
                const int from = left ? __ffs(left) - 1 : 0;
                const u32 shown = __shfl_sync(0xffffffffu, used[j], from), word = left ? shown : 0u;
                const u32 below = __shfl_sync(0xffffffffu, child[j], from);
                const u32 first = __shfl_sync(0xffffffffu, before[j], from) - window;
                const u32 at = first + __popc(word & ((1u << lane) - 1));
                const u32 slot = 32 * (WORDS * (first_thread + from) + j) + lane;
                if (word >> lane & 1 && at < WINDOW)
                    list[at] = static_cast<u16>(slot | (below >> lane & 1 ? CHILD : 0u));
            }
        }
}

template <int AHEAD, int LANES>
__device__ __forceinline__ void read_entries(const u16* list, int listed, int at, const u64* table,
                                             Entry (&entries)[AHEAD]) {
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
        const int i = at + k * LANES;
        entries[k].slot = i < listed ? list[i] : NO_ENTRY;
        entries[k].word = i < listed ? table[entries[k].slot & ~CHILD] : 0;
    }
}

// A block a node: thread t merges the used slots of numbers t, t + LANES, ..., whichever slots these
// are, so that nodes in which a plane is used keep all threads busy. AHEAD records of each are read at
// once, and their entries while the ones before are merged.
template <int SLOTS, int LANES, int AHEAD, int BYTES, int CHILD_BYTES, int EDGE>
__device__ __forceinline__ void node_stats(const GridStats& m, u64 nodes, u64 children, u32 first_child_slot,
                                           u32 own_slot) {
    constexpr int MASK = SLOTS / 8, WORDS = SLOTS / 32 / LANES, SIDE = SLOTS == LOWER_SLOTS ? 16 : 32;
    __shared__ u16 shared_list[WINDOW];
    const u64 begin = nodes + static_cast<u64>(blockIdx.x) * BYTES;
    u32* node = at_byte<u32>(m.grid, begin);
    const u64* table = at_byte<u64>(node, BYTES - 8 * SLOTS);
    const u32 *is_value = node + 32 / 4 + WORDS * threadIdx.x, *is_child = is_value + MASK / 4;
    u32 used[WORDS], child[WORDS];
    int before[WORDS], count = 0, total;
#pragma unroll
    for (int j = 0; j < WORDS; ++j) child[j] = is_child[j], used[j] = child[j] | is_value[j];
    int origin[3];
    for (int a = 0; a < 3; ++a) origin[a] = static_cast<int>(node[a]) & ~(SIDE * EDGE - 1);
#pragma unroll
    for (int j = 0; j < WORDS; ++j) before[j] = count, count += __popc(used[j]);
    count = block_exclusive_sum<LANES>(count, &total);
#pragma unroll
    for (int j = 0; j < WORDS; ++j) before[j] += count;
    Stats mine = nothing();
    for (int window = 0; window < total; window += WINDOW) {
        if (window) __syncthreads();  // all have read the list
        list_slots<WORDS>(used, child, before, window, shared_list);
        __syncthreads();
        const int listed = min(total - window, WINDOW);
        Entry next[AHEAD];
        read_entries<AHEAD, LANES>(shared_list, listed, threadIdx.x, table, next);
        for (int at = threadIdx.x; at < listed; at += AHEAD * LANES) {
            Entry entries[AHEAD];
            Stats found[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; ++k) {
                entries[k] = next[k];
                if (entries[k].slot != NO_ENTRY && entries[k].slot & CHILD)
                    found[k] = *record(m, first_child_slot + (begin + entries[k].word - children) / CHILD_BYTES);
            }
            read_entries<AHEAD, LANES>(shared_list, listed, at + AHEAD * LANES, table, next);
#pragma unroll
            for (int k = 0; k < AHEAD; ++k) {
                if (entries[k].slot == NO_ENTRY) continue;
                if (!(entries[k].slot & CHILD)) {
                    const int i = entries[k].slot, x = i / (SIDE * SIDE), y = i / SIDE % SIDE, z = i % SIDE;
                    const int corner[3] = {origin[0] + x * EDGE, origin[1] + y * EDGE, origin[2] + z * EDGE};
                    found[k] = tile_stats(m, static_cast<u32>(entries[k].word), corner, EDGE);
                }
                mine = merge(m, mine, found[k]);
            }
        }
    }
    const Stats s = merge_block<LANES>(m, mine, min(total, LANES));
    if (threadIdx.x) return;
    *record(m, own_slot + blockIdx.x) = s;
    if (!m.write) return;
    if (s.first[0] <= s.last[0])
        for (int a = 0; a < 3; ++a) node[a] = s.first[a], node[3 + a] = s.last[a];
    write_stats(m, s, node + (32 + 2 * MASK) / 4);
}

extern "C" __global__ void __launch_bounds__(LOWER_LANES, LOWER_BLOCKS) lower_stats(const GridStats m) {
    begin_dependent();
    node_stats<LOWER_SLOTS, LOWER_LANES, LOWER_AHEAD, LOWER_BYTES, LEAF_BYTES, 8>(m, m.lower, m.leaf, 0, m.leaves);
}

// The box around the eight corners of the voxels of a box, by the map of the grid.
__device__ __forceinline__ void write_world_box(const GridStats& m, const Stats& s) {
    const double* matrix = at_byte<double>(m.grid, 296 + 88);
    const double* translation = at_byte<double>(m.grid, 296 + 232);
    double* box = at_byte<double>(m.grid, 560);
    const bool some = s.first[0] <= s.last[0];
    for (int row = 0; row < 3; ++row) {
        const double* r = matrix + 3 * row;
        double low = 0., high = 0.;
        for (int corner = 0; some && corner < 8; ++corner) {
            const double x = corner & 4 ? s.last[0] + 1. : s.first[0];
            const double y = corner & 2 ? s.last[1] + 1. : s.first[1];
            const double z = corner & 1 ? s.last[2] + 1. : s.first[2];
            double at = __dadd_rn(__dmul_rn(r[0], x), __dmul_rn(r[1], y));
            at = __dadd_rn(__dadd_rn(at, __dmul_rn(r[2], z)), translation[row]);
            low = corner && low < at ? low : at;
            high = corner && high > at ? high : at;
        }
        box[row] = low;
        box[3 + row] = high;
    }
}

__device__ __forceinline__ void root_stats(const GridStats& m) {
    u32* root = at_byte<u32>(m.grid, HEAD_BYTES);
    Stats mine = nothing();
    for (u32 i = threadIdx.x; i < m.tiles; i += TOP_LANES) {
        const u32* tile = at_byte<u32>(root, ROOT_BYTES + static_cast<u64>(i) * TILE_BYTES);
        const u64 key = *at_byte<u64>(tile, 0), child = *at_byte<u64>(tile, 8);
        if (child) {
            const u64 number = (HEAD_BYTES + child - m.upper) / UPPER_BYTES;
            mine = merge(m, mine, *record(m, m.leaves + m.lowers + number));
        } else if (tile[4]) {
            int origin[3];  // 21 bits an axis, x first
            for (int a = 0; a < 3; ++a) origin[a] = static_cast<int>(static_cast<u32>(key >> (42 - 21 * a) & 0x1fffff) << 12);
            mine = merge(m, mine, tile_stats(m, tile[5], origin, 4096));
        }
    }
    const Stats s = merge_block<TOP_LANES>(m, mine, m.tiles < TOP_LANES ? m.tiles : TOP_LANES);
    if (threadIdx.x) return;
    *record(m, m.leaves + m.lowers + m.uppers) = s;
    if (!m.write) return;
    for (int a = 0; a < 3; ++a) root[a] = s.first[a], root[3 + a] = s.last[a];
    write_stats(m, s, root + 8);
    m.grid[5] |= m.moments ? 2 | 4 | 8 | 16 : 2 | 4;
    write_world_box(m, s);
}

// Upper nodes; the block that is done last goes on with the root, for which there is one where no
// upper node is.
extern "C" __global__ void __launch_bounds__(TOP_LANES) top_stats(const GridStats m) {
    begin_dependent();
    __shared__ bool shared_last;
    if (m.uppers) {
        node_stats<UPPER_SLOTS, TOP_LANES, TOP_AHEAD, UPPER_BYTES, LOWER_BYTES, 128>(
            m, m.upper, m.lower, m.leaves, m.leaves + m.lowers);
        if (threadIdx.x == 0) {
            __threadfence();  // the record of this node before the count
            shared_last = atomicAdd(done(m), 1u) + 1 == m.uppers;
            __threadfence();  // the count before the records of the others
        }
        __syncthreads();
        if (!shared_last) return;
    }
    root_stats(m);
}
