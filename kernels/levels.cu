// Builds the bitmaps of every level of a frame before any convolution runs.
//
// Three launches: mark the cells of level 1; number them, and mark those of all other levels; number
// these. Cells are marked in a bitmap of the whole grid, which is empty between frames: numbering
// moves it to the leaves that are active, where all later kernels look, and clears it.
//
// All levels follow from level 1 alone: with kernel 3, stride 2 and padding 1 on every level, a cell
// o of stride s is active if and only if level 1 has a cell x with |x - s o| < s on each axis. So
// each leaf of level 1 marks a window of at most 5 x 5 x 5 cells on every other level, and no level
// waits for another. The bird's-eye levels are the union of the levels of stride 8, 16 and 32
// without z, and its 3 x 3 dilation. Bits are set by atomic OR: the result knows no order.
#include "levels.cuh"

constexpr int kThreads = 256;

// Marks read before they write: most bits are set already, and an atomic costs more than a read.
__device__ __forceinline__ void mark_leaves(const Level& level, int word, u32 bits) {
    if (bits & ~__ldcg(&level.top[word].x)) atomicOr(&level.top[word].x, bits);
}

__device__ __forceinline__ u64* word_of(const Level& level, int leaf_cell, int z) {
    return level.cells + static_cast<long long>(leaf_cell) * kWordsPerLeaf + (z & 7);
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

// Sets a cell; whoever sets the first one of a word marks its leaf too. Near the sensor thousands of
// points share a word of leaves, so it must see few atomics.
__device__ __forceinline__ void mark_cell(const Level& level, const LeafBit& at) {
    u64* word = word_of(level, at.leaf_cell, at.word);
    const u64 bit = 1ull << at.bit, seen = __ldcg(word);
    if (seen & bit) return;
    if (seen)
        atomicOr(word, bit);
    else if (!atomicOr(word, bit))
        mark_leaves(level, at.leaf_cell >> 5, 1u << (at.leaf_cell & 31));
}

// points (n, stride) -> point_cell (n): leaf raster index and bit of each point; and the cells.
// dropped: non-finite points, points outside.
extern "C" __global__ void mark_points(const __grid_constant__ Level level, const __grid_constant__ VoxelGrid grid,
                                       const float* points, const int* n_points, int2* point_cell, int* dropped) {
    begin_dependent();
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
            mark_cell(level, at);
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

// ---- from set bits to numbers ---------------------------------------------------------------

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

constexpr int kMostChunkWords = 8;  // so that the leaves of a chunk fit

// Lists the leaves of up to 32 top words, one a lane of the first warp, in order; returns how many,
// and to each of these lanes how many lie before its word. leaves: room for 32 a word.
__device__ __forceinline__ int list_leaves(u32 bits, int word, int* leaves, int* before) {
    __shared__ int listed;
    if (threadIdx.x < 32) {
        int end = __popc(bits);
        for (int d = 1; d < 32; d *= 2) {
            const int left = __shfl_up_sync(0xffffffffu, end, d);
            if (threadIdx.x >= d) end += left;
        }
        int leaf = *before = end - __popc(bits);
        for (u32 rest = bits; rest; rest &= rest - 1) leaves[leaf++] = word * 32 + __ffs(rest) - 1;
        if (threadIdx.x == 31) listed = end;
    }
    __syncthreads();
    return listed;
}

__device__ __forceinline__ int chunks_of(const Level& level) {
    return (level.top_words + level.chunk_words - 1) / level.chunk_words;
}

// Numbers the leaves and rows of one chunk, writes the leaves and the coordinates of the rows, and
// empties the cells where `last` use. The threads share the rows evenly, however they crowd.
__device__ __forceinline__ void number_chunk(const Level& level, int chunk, bool last) {
    __shared__ int leaves[kMostChunkWords * 32], starts[kThreads];
    __shared__ u64 words[kThreads];
    const int top = chunk * level.chunk_words + threadIdx.x;
    const bool mine = threadIdx.x < level.chunk_words && top < level.top_words;
    int leaves_before;
    const int n_leaves = list_leaves(mine ? level.top[top].x : 0u, top, leaves, &leaves_before);
    const int n_words = n_leaves * kWordsPerLeaf;
    int n_rows = 0;
    for (int w = threadIdx.x; w < n_words; w += kThreads) n_rows += __popcll(*word_of(level, leaves[w / kWordsPerLeaf], w));
    block_exclusive_sum<kThreads>(n_rows, &n_rows);
    const u64 before = sum_before<kThreads>(level.chunk_sums, chunk, static_cast<u64>(n_leaves) << 32 | static_cast<u32>(n_rows));
    const int leaf0 = static_cast<int>(before >> 32);
    int row0 = static_cast<int>(static_cast<u32>(before));
    if (mine) level.top[top].y = leaf0 + leaves_before;
    if (threadIdx.x == 0 && chunk == chunks_of(level) - 1) level.counts[0] = leaf0 + n_leaves, level.counts[1] = row0 + n_rows;
    for (int base = 0; base < n_words; base += kThreads) {
        const int w = base + threadIdx.x, leaf = leaf0 + w / kWordsPerLeaf;
        u64 bits = 0;
        if (w < n_words) {
            u64* from = word_of(level, leaves[w / kWordsPerLeaf], w);
            bits = *from;
            if (last && bits) *from = 0;
        }
        int total;
        words[threadIdx.x] = bits;
        starts[threadIdx.x] = block_exclusive_sum<kThreads>(__popcll(bits), &total);
        if (w < n_words && leaf < level.leaf_capacity)
            level.leaf[leaf * kWordsPerLeaf + w % kWordsPerLeaf] = make_ulonglong2(bits, row0 + starts[threadIdx.x]);
        __syncthreads();
        for (int r = threadIdx.x; r < total && row0 + r < level.row_capacity; r += kThreads) {
            int word = 0;  // the last word that starts at or before row r
#pragma unroll
            for (int step = kThreads / 2; step; step /= 2)
                if (starts[word + step] <= r) word += step;
            const int bit = nth_bit(words[word], r - starts[word]);
            const int cell = leaves[(base + word) / kWordsPerLeaf], line = cell / level.lx, layer = line / level.ly;
            int* c = level.coords + (row0 + r) * 3LL;
            c[0] = layer * 8 + (word & 7);
            c[1] = (line - layer * level.ly) * 8 + (bit >> 3);
            c[2] = (cell - line * level.lx) * 8 + (bit & 7);
        }
        row0 += total;
        __syncthreads();
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

// Sets the cells of a window whose first cell is (z, y, x), clipped to the level; y, x >= -1. Whoever
// finds a cell set leaves its leaf to the one that set it.
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
    u64 missing[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        missing[i] = parts[i] ? parts[i] & ~__ldcg(word_of(level, leaf_cell + (i >> 1) * level.lx + (i & 1), z)) : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (!missing[i]) continue;
        const int cell = leaf_cell + (i >> 1) * level.lx + (i & 1);
        atomicOr(word_of(level, cell, z), missing[i]);
        if (cell >> 5 < kSeenWords)
            atomicOr(seen + (cell >> 5), 1u << (cell & 31));
        else
            mark_leaves(level, cell >> 5, 1u << (cell & 31));
    }
}

// Marks what one leaf of level 1 activates in slice k of its window on a level.
__device__ __forceinline__ void mark_from_leaf(const Level& level, u32* seen, const u64* leaf, int k, int z0, int y0, int x0) {
    if (level.kind == 0) {
        const int s = level.stride, bits = __ffs(s) - 1;
        int low, high;
        covering(s, z0 & (s - 1), k, &low, &high);
        u64 cells = 0;
#pragma unroll
        for (int i = 0; i < kWordsPerLeaf; ++i)  // unrolled, so that all words are in flight together
            if (i >= low && i <= high) cells |= leaf[i];
        if (cells && (z0 >> bits) + k < level.nz)
            mark_window(level, seen, (z0 >> bits) + k, y0 >> bits, x0 >> bits, activated(cells, s, y0 & (s - 1), x0 & (s - 1)));
        return;
    }
    u64 cells = 0;
    for (int i = 0; i < kWordsPerLeaf; ++i) cells |= leaf[i];
    const int s = 8 << k, bits = 3 + k;  // of the level that is merged
    const int y = y0 >> bits << k, x = x0 >> bits << k, margin = level.kind == 1 ? 0 : 1;
    const u64 mark = margin ? 0x070707ull : 1ull;
    u64 window = 0;  // of at most 7 x 7 cells
    for (u64 rest = activated(cells, s, y0 & (s - 1), x0 & (s - 1)); rest; rest &= rest - 1) {
        const int bit = __ffsll(rest) - 1, dy = bit >> 3 << k, dx = (bit & 7) << k;
        if (y + dy < level.ny && x + dx < level.nx) window |= mark << (dy * 8 + dx);
    }
    if (window) mark_window(level, seen, 0, y - margin, x - margin, window);
}

// Marks the cells and leaves of one level, one thread a leaf of level 1 and slice of its window. The
// blocks of a level share the top words of level 1 like cards: crowded leaves are neighbours.
__device__ __forceinline__ void mark_level(const Level& source, const Level& level, int block, int blocks) {
    __shared__ u32 seen[kSeenWords];
    __shared__ int leaves[32 * 32];
    const int seen_words = min(level.top_words, kSeenWords);
    for (int i = threadIdx.x; i < seen_words; i += kThreads) seen[i] = 0;
    const int slices = level.kind == 0 ? targets(level.stride) : 3;
    for (int first = block; first < source.top_words; first += 32 * blocks) {
        const int top = first + threadIdx.x * blocks;
        int before;
        const int n = list_leaves(threadIdx.x < 32 && top < source.top_words ? source.top[top].x : 0u, top, leaves, &before);
        for (int i = threadIdx.x; i < n * slices; i += kThreads) {
            const int cell = leaves[i / slices], line = cell / source.lx, layer = line / source.ly;
            const int y0 = (line - layer * source.ly) * 8, x0 = (cell - line * source.lx) * 8;
            mark_from_leaf(level, seen, word_of(source, cell, 0), i % slices, layer * 8, y0, x0);
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < seen_words; i += kThreads)
        if (seen[i]) mark_leaves(level, i, seen[i]);
}

// grid: one block a chunk of level 1, which it numbers; then `blocks` for each other level, which
// they mark.
extern "C" __global__ void __launch_bounds__(kThreads) mark_levels(const __grid_constant__ Levels levels, int blocks) {
    begin_dependent();
    const Level& source = levels.at[0];
    const int block = static_cast<int>(blockIdx.x) - chunks_of(source);
    if (block < 0)
        number_chunk(source, blockIdx.x, false);
    else
        mark_level(source, levels.at[1 + block / blocks], block % blocks, blocks);
}

// grid: one block a chunk of each level but the first, which it numbers; then one for 32 top words of
// level 1, whose cells it clears.
extern "C" __global__ void __launch_bounds__(kThreads) number_levels(const __grid_constant__ Levels levels) {
    begin_dependent();
    int block = blockIdx.x;
    for (int l = 1; l < 8; ++l) {
        const int chunks = chunks_of(levels.at[l]);
        if (block < chunks) return number_chunk(levels.at[l], block, true);
        block -= chunks;
    }
    const Level& first = levels.at[0];
    const int top = block * 32 + threadIdx.x / 8;  // eight threads a word, every eighth leaf each
    u32 bits = top < first.top_words ? first.top[top].x & 0x01010101u << (threadIdx.x & 7) : 0u;
    for (; bits; bits &= bits - 1) {
        ulonglong2* leaf = reinterpret_cast<ulonglong2*>(word_of(first, top * 32 + __ffs(bits) - 1, 0));
        for (int i = 0; i < kWordsPerLeaf / 2; ++i) leaf[i] = make_ulonglong2(0, 0);
    }
}
