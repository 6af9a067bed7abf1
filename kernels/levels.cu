// Builds the bitmaps of every level of a frame before any convolution runs.
//
// All levels follow from level 1 alone: with kernel 3, stride 2 and padding 1 on every level, a cell
// o of stride s is active if and only if level 1 has a cell x with |x - s o| < s on each axis. So
// each leaf of level 1 marks a window of at most 5 x 5 x 5 cells on every other level, and no level
// waits for another. The bird's-eye levels are the union of the levels of stride 8, 16 and 32
// without z, and its 3 x 3 dilation. Bits are set by atomic OR: the result knows no order.
#include "levels.cuh"

constexpr int kThreads = 256;

// Marks read before they write: most bits are set already, and a stale read only costs an atomic.
__device__ __forceinline__ void mark_leaves(const Level& level, int word, u32 bits) {
    if (bits & ~level.top[word].x) atomicOr(&level.top[word].x, bits);
}

__device__ __forceinline__ void mark_cells(const Level& level, int leaf_cell, int z, u64 bits) {
    const int leaf = leaf_index(level, leaf_cell);
    if (leaf < 0) return;
    u64* word = &level.leaf[leaf * kWordsPerLeaf + (z & 7)].x;
    if (bits & ~*word) atomicOr(word, bits);
}

// ---- level 1 from points --------------------------------------------------------------------

struct VoxelGrid {
    float min_x, min_y, min_z, max_x, max_y;
    float size_x, size_y, size_z;
    int nx, ny, nz;     // cells that points may fall into; the level itself may have one more
    int point_stride;   // floats from one point to the next
    int features;       // floats of a point that must be finite
};

// Cell along one axis, or -1. IEEE subtraction and division decide it, as in the reference.
__device__ __forceinline__ int cell_of(float p, float low, float size, int cells) {
    const float c = floorf(__fdiv_rn(__fsub_rn(p, low), size));
    return c >= 0.f && c < static_cast<float>(cells) ? static_cast<int>(c) : -1;
}

// points (n, stride) -> point_cell (n): leaf raster index and bit of each point, and the leaves.
// dropped: non-finite points, points outside.
extern "C" __global__ void mark_points(const Level* levels, const VoxelGrid* voxel_grid, const float* points,
                                       const int* n_points, int2* point_cell, int* dropped) {
    const Level level = levels[0];
    const VoxelGrid grid = *voxel_grid;
    const int n = *n_points;
    int non_finite = 0, outside = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const float* p = points + static_cast<long long>(i) * grid.point_stride;
        bool finite = true;
        for (int f = 0; f < grid.features; ++f) finite = finite && isfinite(p[f]);
        const int x = cell_of(p[0], grid.min_x, grid.size_x, grid.nx);
        const int y = cell_of(p[1], grid.min_y, grid.size_y, grid.ny);
        const int z = cell_of(p[2], grid.min_z, grid.size_z, grid.nz);
        const bool in_range = p[0] >= grid.min_x && p[0] <= grid.max_x && p[1] >= grid.min_y && p[1] <= grid.max_y;
        int2 cell = make_int2(-1, 0);
        if (finite && in_range && x >= 0 && y >= 0 && z >= 0) {
            const LeafBit at = leaf_bit(level, z, y, x);
            cell = make_int2(at.leaf_cell, at.word * 64 + at.bit);
            mark_leaves(level, at.leaf_cell >> 5, 1u << (at.leaf_cell & 31));
        } else if (finite) {
            ++outside;
        } else {
            ++non_finite;
        }
        point_cell[i] = cell;
    }
    __syncwarp();
    for (int d = 16; d; d /= 2) {
        outside += __shfl_xor_sync(0xffffffffu, outside, d);
        non_finite += __shfl_xor_sync(0xffffffffu, non_finite, d);
    }
    if ((threadIdx.x & 31) == 0) {
        if (non_finite) atomicAdd(dropped, non_finite);
        if (outside) atomicAdd(dropped + 1, outside);
    }
}

// Marks the level-1 cell of each point.
extern "C" __global__ void mark_voxels(const Level* levels, const int2* point_cell, const int* n_points) {
    const Level level = levels[0];
    const int n = *n_points;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int2 cell = point_cell[i];
        if (cell.x >= 0) mark_cells(level, cell.x, cell.y >> 6, 1ull << (cell.y & 63));
    }
}

// ---- from set bits to numbers ---------------------------------------------------------------

// grid (blocks, levels): numbers the leaves of each level and clears their words.
extern "C" __global__ void __launch_bounds__(kThreads) number_leaves(const Level* levels, int first_level) {
    const Level level = levels[first_level + blockIdx.y];
    const int chunks = (level.top_words + kThreads - 1) / kThreads;
    for (int chunk; (chunk = take_chunk(level.counts + 2)) < chunks;) {
        const int at = chunk * kThreads + threadIdx.x;
        const u32 bits = at < level.top_words ? level.top[at].x : 0u;
        int total, leaf = block_exclusive_sum<kThreads>(__popc(bits), &total);
        const int before = chunk_exclusive_sum<kThreads>(level.leaf_status, chunk, total);
        leaf += before;
        if (at < level.top_words) level.top[at].y = leaf;
        for (u32 rest = bits; rest; rest &= rest - 1, ++leaf)
            if (leaf < level.leaf_capacity) level.leaf_cell[leaf] = at * 32 + __ffs(rest) - 1;
        const int words = min(before + total, level.leaf_capacity) * kWordsPerLeaf;
        for (int w = before * kWordsPerLeaf + threadIdx.x; w < words; w += kThreads)
            level.leaf[w] = make_ulonglong2(0, 0);
        if (chunk == chunks - 1 && threadIdx.x == 0) level.counts[0] = before + total;
    }
}

// Position of set bit number `n` of a word that has more than n.
__device__ __forceinline__ int nth_bit(u64 word, int n) {
    int at = 0;
#pragma unroll
    for (int width = 32; width; width /= 2) {
        const int below = __popcll(word >> at & ((1ull << width) - 1));
        if (n >= below) n -= below, at += width;
    }
    return at;
}

// grid (blocks, levels): numbers the rows of each level and writes their coordinates. A block
// numbers 256 words, then its threads share the rows evenly, however they crowd.
extern "C" __global__ void __launch_bounds__(kThreads) number_rows(const Level* levels, int first_level) {
    __shared__ u64 words[kThreads];
    __shared__ int starts[kThreads];
    const Level level = levels[first_level + blockIdx.y];
    const int n_words = min(level.counts[0], level.leaf_capacity) * kWordsPerLeaf;
    const int chunks = (n_words + kThreads - 1) / kThreads;
    for (int chunk; (chunk = take_chunk(level.counts + 3)) < chunks;) {
        const int at = chunk * kThreads + threadIdx.x;
        const u64 bits = at < n_words ? level.leaf[at].x : 0ull;
        int total;
        words[threadIdx.x] = bits;
        starts[threadIdx.x] = block_exclusive_sum<kThreads>(__popcll(bits), &total);
        const int before = chunk_exclusive_sum<kThreads>(level.row_status, chunk, total);
        if (at < n_words) level.leaf[at].y = before + starts[threadIdx.x];
        for (int r = threadIdx.x; r < total && before + r < level.row_capacity; r += kThreads) {
            int word = 0;  // the last word that starts at or before row r
#pragma unroll
            for (int step = kThreads / 2; step; step /= 2)
                if (starts[word + step] <= r) word += step;
            const int bit = nth_bit(words[word], r - starts[word]);
            const int cell = level.leaf_cell[chunk * (kThreads / kWordsPerLeaf) + word / kWordsPerLeaf];
            int* c = level.coords + (before + r) * 3LL;
            c[0] = cell / (level.lx * level.ly) * 8 + (word & 7);
            c[1] = cell / level.lx % level.ly * 8 + (bit >> 3);
            c[2] = cell % level.lx * 8 + (bit & 7);
        }
        if (chunk == chunks - 1 && threadIdx.x == 0) level.counts[1] = before + total;
    }
}

// ---- every other level from level 1 ------------------------------------------------------------

// Cells of a leaf's edge (0..7) that activate target k of a level of this stride; `offset` is the
// position of the leaf in cells of level 1 modulo the stride.
__device__ __forceinline__ void covering(int stride, int offset, int k, int* low, int* high) {
    if (stride < 8) {
        *low = max(k * stride - stride + 1, 0);
        *high = min(k * stride + stride - 1, 7);
    } else {
        *low = k == 0 || offset > 0 ? 0 : 1;
        *high = 7;
    }
}

__device__ __forceinline__ int targets(int stride) { return stride < 8 ? 8 / stride + 1 : 2; }

// 8 x 8 cells of level 1 -> the window of cells they activate, bit = row * 8 + column.
__device__ __forceinline__ u64 activated(u64 cells, int stride, int offset_y, int offset_x) {
    u64 window = 0;
    const int n = targets(stride);
    for (int j = 0; j < n; ++j) {
        int low, high;
        covering(stride, offset_y, j, &low, &high);
        u64 rows = cells >> (low * 8) << (low * 8 + (7 - high) * 8) >> ((7 - high) * 8);
        rows |= rows >> 32, rows |= rows >> 16, rows |= rows >> 8;
        const u32 columns = static_cast<u32>(rows) & 255u;
        for (int i = 0; i < n; ++i) {
            covering(stride, offset_x, i, &low, &high);
            if (columns >> low << low & (2u << high) - 1) window |= 1ull << (j * 8 + i);
        }
    }
    return window;
}

// Leaves that a block marks, gathered before they go to memory: on coarse levels every block marks
// the same few words.
constexpr int kSeenWords = 1024;

// Sets the cells of a window whose first cell is (z, y, x), clipped to the level; y, x >= -1.
// Where `seen` is given, marks the leaves of those cells instead.
__device__ __forceinline__ void mark_window(const Level& level, u32* seen, int z, int y, int x, u64 window) {
    if (y < 0) window >>= 8, y = 0;
    if (x < 0) window = window >> 1 & 0x7f7f7f7f7f7f7f7full, x = 0;
    const int rows = min(level.ny - y, 8), columns = min(level.nx - x, 8);
    if (rows <= 0 || columns <= 0) return;
    window &= rows == 8 ? ~0ull : (1ull << rows * 8) - 1;
    window &= 0x0101010101010101ull * ((1u << columns) - 1);
    const int oy = y & 7, ox = x & 7;
    const u64 near_columns = 0x0101010101010101ull * ((1u << (8 - ox)) - 1);
    const u64 left = (window & near_columns) << ox, right = ox ? (window & ~near_columns) >> (8 - ox) : 0;
    const u64 parts[4] = {left << oy * 8, right << oy * 8, oy ? left >> (8 - oy) * 8 : 0, oy ? right >> (8 - oy) * 8 : 0};
    const int leaf_cell = ((z >> 3) * level.ly + (y >> 3)) * level.lx + (x >> 3);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (!parts[i]) continue;
        const int cell = leaf_cell + (i >> 1) * level.lx + (i & 1);
        if (!seen)
            mark_cells(level, cell, z, parts[i]);
        else if (cell >> 5 < kSeenWords)
            atomicOr(seen + (cell >> 5), 1u << (cell & 31));
        else
            mark_leaves(level, cell >> 5, 1u << (cell & 31));
    }
}

// Marks what one leaf of level 1 activates in slice k of its window on a level.
__device__ __forceinline__ void mark_from_leaf(const Level& level, u32* seen, const ulonglong2* leaf, int k, int z0, int y0, int x0) {
    if (level.kind == 0) {
        const int s = level.stride;
        int low, high;
        covering(s, z0 % s, k, &low, &high);
        u64 cells = 0;
        for (int i = low; i <= high; ++i) cells |= leaf[i].x;
        if (cells && z0 / s + k < level.nz)
            mark_window(level, seen, z0 / s + k, y0 / s, x0 / s, activated(cells, s, y0 % s, x0 % s));
        return;
    }
    u64 cells = 0;
    for (int i = 0; i < kWordsPerLeaf; ++i) cells |= leaf[i].x;
    const int s = 8 << k;  // of the level that is merged
    for (u64 rest = activated(cells, s, y0 % s, x0 % s); rest; rest &= rest - 1) {
        const int bit = __ffsll(rest) - 1, y = (y0 / s + (bit >> 3)) * (s / 8), x = (x0 / s + (bit & 7)) * (s / 8);
        if (y >= level.ny || x >= level.nx) continue;
        if (level.kind == 1)
            mark_window(level, seen, 0, y, x, 1ull);
        else
            mark_window(level, seen, 0, y - 1, x - 1, 0x070707ull);
    }
}

// grid (blocks, levels - 1), one thread a leaf of level 1 and slice of its window: marks the leaves
// (pass 0) or the cells (pass 1) of one level.
extern "C" __global__ void __launch_bounds__(kThreads) mark_levels(const Level* levels, int pass) {
    __shared__ u32 shared_seen[kSeenWords];
    const Level source = levels[0], level = levels[1 + blockIdx.y];
    u32* seen = pass == 0 ? shared_seen : nullptr;
    const int seen_words = min(level.top_words, kSeenWords);
    if (seen)
        for (int i = threadIdx.x; i < seen_words; i += kThreads) seen[i] = 0;
    __syncthreads();
    const int leaves = min(source.counts[0], source.leaf_capacity);
    const int slices = level.kind == 0 ? targets(level.stride) : 3;
    for (int i = blockIdx.x * kThreads + threadIdx.x; i < leaves * slices; i += gridDim.x * kThreads) {
        const int leaf = i / slices, cell = source.leaf_cell[leaf];
        const int z0 = cell / (source.lx * source.ly) * 8, y0 = cell / source.lx % source.ly * 8, x0 = cell % source.lx * 8;
        mark_from_leaf(level, seen, source.leaf + leaf * kWordsPerLeaf, i % slices, z0, y0, x0);
    }
    __syncthreads();
    if (seen)
        for (int i = threadIdx.x; i < seen_words; i += kThreads)
            if (seen[i]) mark_leaves(level, i, seen[i]);
}
