// Pools camera features into a bird's-eye view on tensor cores, a tile of 16 cells after the other.
//
// All points of a camera column u at a depth, over the rows v, mostly share a cell: points come as
// vertical runs. Let w[cell][camera, u][v] be the sum of the depths of the points (d, v) of that
// column that fall into the cell (mostly one, rarely two). Then
//   out[cell] = scale * sum over the columns it is seen in of w[cell][column][0 .. H) * features[column]
// and for 16 cells and 16 rows that is one step of a matrix product: (16 cells x 16 rows) times
// (16 rows x C). Neighbours on one ray share their columns, so with cells in the order of the first
// column, then of the first depth, that sees them, 16 cells need 2 to 6 columns between them.
//
// Estimate (six cameras of 16 x 44 pixels, 59 depths, 200 x 200 cells of 0.5 m, C = 80, halves):
// 209,167 points are 15,283 cells, 956 tiles and 2,446 steps. Features: 2,446 * 16 * 160 bytes =
// 6.3 MB where one row a point is 33.5 MB; tables 1.3 MB where the map is 2.5 MB; results 2.4 MB;
// depths a sector of 32 bytes a point, 6.7 MB, less where columns of a tile share one. 17 MB through
// L2 at 6 TB/s are 3 us; the products are 2 % of that. The chain slot -> step -> depth -> product ->
// result takes about 1.2 us, and each further step of a warp about 0.5 us.
//
// So the time of a warp is its steps. A tile has 1 to 88 of them: they are cut like the intervals of
// bev_pool.cu into 1, 2, 4 ... parts of about two steps, a warp each, that are neighbours in a block
// and are added up in order through shared memory. Dearest first; no warp is idle, and the whole
// example is on the chip at once. More than 128 channels are divided over blocks.
//
// A lane 4 g + t holds rows v = 4 t .. 4 t + 3 of a step (which of the 16 an index k of the product
// stands for is free): weights of the cells g and g + 8, features of VEC channels from VEC g on, and
// gets results of the cells g and g + 8, channels 2 VEC t .. 2 VEC t + 2 VEC - 1.
//
// Products of halves are exact, their sums in float; w is rounded to half, which changes it only
// where several points add up or depths are floats. Weights above 65504 become infinite. Every order
// is fixed by the map, so results repeat. A depth that is NaN or infinite reaches the cell of its
// point only; a feature that is spreads over the up to 16 cells of the tiles that see its pixel.
//
// CHANNELS C; FEATURES (half or e4m3), DEPTHS, RESULTS: pool.cuh; ALIGN channels can be loaded at once.
#include "pool.cuh"

#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
constexpr int WARP_CHANNELS = CHANNELS / GROUPS;
constexpr int PARTS = (WARP_CHANNELS + 7) / 8;  // products of a step
constexpr int ELEMENT = Bytes<FEATURES>::value;
static_assert(CHANNELS % GROUPS == 0, "channels divide over the blocks");

struct PoolTiles {
    const void *depth, *features;
    void* out;
    const int* slots;       // (slots, 4): first step, steps, tile, part | parts of the tile << 16
    const int* tile_cells;  // (tiles, 16): cell or -1
    const u32* step_place;  // (steps,): u | v / 16 << 16 | camera << 24
    const uint4* entries;   // (steps, 32 lanes, 8 halfwords): first depth | number of depths << 10
    int depth_camera, depth_bin, depth_row, depth_column;  // elements between neighbours
    int feature_camera, feature_row, feature_column;
    int rows, cols, cells;
    u64 depth_batch, feature_batch;
    const float* norms;  // (B, norm_batch, 2) where LOGITS is 1, or null
    u64 norm_batch;      // pixels of a batch item
    float scale;
};

// Channels of a warp lie in groups: as wide vectors as fit eight lanes and the alignment.
__device__ constexpr int vector_of(int rest) {
    int vec = ALIGN;
    while (vec > 1 && 8 * vec > rest) vec /= 2;
    return vec;
}
__device__ constexpr int words_of(int vec) { return vec * ELEMENT < 4 ? 1 : vec * ELEMENT / 4; }
__device__ constexpr int words_of_row(int rest) {
    int words = 0;
    for (; rest > 0; rest -= 8 * vector_of(rest)) words += words_of(vector_of(rest));
    return words;
}
constexpr int WORDS = words_of_row(WARP_CHANNELS);

struct Rows {
    u32 word[4][WORDS];  // four rows of features, this lane's channels of every group
};

template <int BASE, int WORD>
__device__ __forceinline__ void load_groups(Rows& rows, int row, const char* from, int g) {
    if constexpr (BASE < WARP_CHANNELS) {
        constexpr int VEC = vector_of(WARP_CHANNELS - BASE), N = words_of(VEC);
        u32 word[N] = {};
        if (VEC > 1 || BASE + 8 <= WARP_CHANNELS || BASE + g < WARP_CHANNELS)
            load_words<VEC * ELEMENT>(word, from + (BASE + g * VEC) * ELEMENT);
#pragma unroll
        for (int i = 0; i < N; ++i) rows.word[row][WORD + i] = word[i];
        load_groups<BASE + 8 * VEC, WORD + N>(rows, row, from, g);
    }
}

// The two halves of channels 2 i and 2 i + 1 of a vector.
template <int VEC>
__device__ __forceinline__ u32 channel_pair(const u32* word, int i) {
    if constexpr (FEATURES == HALF) return word[i];
    return halves_from_e4m3(word[i / 2] >> (i % 2 * 16) & 0xffffu);
}

template <int BASE, int WORD>
__device__ __forceinline__ void multiply_groups(float (&sum)[PARTS][4], const u32 (&weights)[4], const Rows& rows) {
    if constexpr (BASE < WARP_CHANNELS) {
        constexpr int VEC = vector_of(WARP_CHANNELS - BASE);
#pragma unroll
        for (int i = 0; i < (VEC + 1) / 2; ++i) {
            u32 pair[4];
#pragma unroll
            for (int row = 0; row < 4; ++row) pair[row] = channel_pair<VEC>(rows.word[row] + WORD, i);
            const u32 even[2] = {(pair[0] & 0xffffu) | pair[1] << 16, (pair[2] & 0xffffu) | pair[3] << 16};
            mma_m16n8k16_f16(sum[BASE / 8 + 2 * i], weights, even);
            if constexpr (VEC > 1) {
                const u32 odd[2] = {pair[0] >> 16 | (pair[1] & 0xffff0000u), pair[2] >> 16 | (pair[3] & 0xffff0000u)};
                mma_m16n8k16_f16(sum[BASE / 8 + 2 * i + 1], weights, odd);
            }
        }
        multiply_groups<BASE + 8 * VEC, WORD + words_of(VEC)>(sum, weights, rows);
    }
}

template <int BASE>
__device__ __forceinline__ void store_groups(const PoolTiles& p, const float (&sum)[PARTS][4], u64 at, int half,
                                             int t) {
    if constexpr (BASE < WARP_CHANNELS) {
        constexpr int VEC = vector_of(WARP_CHANNELS - BASE);
        float v[2 * VEC];
#pragma unroll
        for (int i = 0; i < 2 * VEC; ++i) v[i] = sum[BASE / 8 + i % VEC][2 * half + i / VEC] * p.scale;
        if constexpr (BASE + 8 * VEC <= WARP_CHANNELS) {
            store_results<RESULTS, CHANNELS, 2 * VEC>(p.out, at + BASE + 2 * VEC * t, v);
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i)  // VEC is 1
                if (BASE + 2 * t + i < WARP_CHANNELS) store_results<RESULTS, 1, 1>(p.out, at + BASE + 2 * t + i, v + i);
        }
        store_groups<BASE + 8 * VEC>(p, sum, at, half, t);
    }
}

// Offsets inside a batch item fit 31 bits; the caller checks it.
__device__ __forceinline__ void load_rows(const PoolTiles& p, Rows& rows, u32 place, int first_channel, int lane) {
    const int v = (place >> 16 & 0xff) * 16 + lane % 4 * 4;
    const int column = (place >> 24) * p.feature_camera + (place & 0xffff) * p.feature_column + first_channel;
    const char* from = static_cast<const char*>(p.features) + (blockIdx.y * p.feature_batch + column) * ELEMENT;
#pragma unroll
    for (int row = 0; row < 4; ++row)  // rows below the image have no weight; any finite value will do
        load_groups<0, 0>(rows, row, from + min(v + row, p.rows - 1) * p.feature_row * ELEMENT, lane / 4);
}

// Left operand of a step: the sum of depths of every (cell, row) of this lane.
//
// Everything is asked for before anything is used: entries that see nothing read some depth, too.
struct Depths {
    float w[8];  // cell g rows 0 and 1 of the lane, cell g + 8 the same; then rows 2 and 3
    const char* from;
    int at[8];
    float2 norm[4];  // of the rows of the lane
};

__device__ __forceinline__ int entry_of(const uint4& entries, int i) {
    const u32 pair = i / 2 == 0 ? entries.x : i / 2 == 1 ? entries.y : i / 2 == 2 ? entries.z : entries.w;
    return i % 2 ? pair >> 16 : pair & 0xffff;
}

__device__ __forceinline__ void load_depths(const PoolTiles& p, Depths& depths, u32 place, const uint4& entries,
                                            int lane) {
    depths.from = static_cast<const char*>(p.depth) + blockIdx.y * p.depth_batch * Bytes<DEPTHS>::value;
    const int base = (place >> 24) * p.depth_camera + (place & 0xffff) * p.depth_column +
                     ((place >> 16 & 0xff) * 16 + lane % 4 * 4) * p.depth_row;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int entry = entry_of(entries, i);
        const int at = base + (i % 2 + i / 4 * 2) * p.depth_row + (entry & 1023) * p.depth_bin;
        depths.at[i] = entry ? at : 0;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) depths.w[i] = load_depth<DEPTHS>(depths.from, depths.at[i]);
    const int first_row = (place >> 16 & 0xff) * 16 + lane % 4 * 4;
    const u64 camera = blockIdx.y * p.norm_batch + static_cast<u64>(place >> 24) * p.rows * p.cols;
#pragma unroll
    for (int row = 0; row < 4; ++row)
        depths.norm[row] =
            load_norm(p.norms, camera + min(first_row + row, p.rows - 1) * p.cols + (place & 0xffff));
}

__device__ __forceinline__ void add_depths(const PoolTiles& p, Depths& depths, const uint4& entries,
                                           u32 (&weights)[4]) {
    int most = 1;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int entry = entry_of(entries, i);
        depths.w[i] = entry ? point_weight(depths.w[i], depths.norm[i % 2 + i / 4 * 2]) : 0.f;
        most = max(most, entry >> 10);
    }
#pragma unroll 1
    for (int k = 1; k < most; ++k)
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (k < entry_of(entries, i) >> 10)
                depths.w[i] += point_weight(load_depth<DEPTHS>(depths.from, depths.at[i] + k * p.depth_bin),
                                            depths.norm[i % 2 + i / 4 * 2]);
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = pack_half2(depths.w[2 * i], depths.w[2 * i + 1]);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, MIN_BLOCKS) pool_tiles(const PoolTiles p) {
    begin_dependent();
    __shared__ float shared_part[WARPS > 1 ? (WARPS - 1) * PARTS * 128 : 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, channel = blockIdx.z * WARP_CHANNELS;
    const int4* slots = reinterpret_cast<const int4*>(p.slots) + blockIdx.x * WARPS;
    const int4 slot = __ldg(slots + warp);
    const int part = slot.w & 0xffff, parts = slot.w >> 16, end = slot.x + slot.y;
    const bool cut = (__ldg(slots).w >> 16) > 1;  // the first tile of a block has the most parts

    // Where the next step is, is read while this one waits for its depths and features.
    int s = slot.x, cell[2];
    u32 place = 0;
    uint4 entries = make_uint4(0, 0, 0, 0);
    if (s < end) {
        place = __ldg(p.step_place + s);
        entries = __ldg(p.entries + static_cast<u64>(s) * 32 + lane);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) cell[half] = __ldg(p.tile_cells + slot.z * 16 + lane / 4 + 8 * half);
    float sum[PARTS][4] = {};
    while (s < end) {
        Rows rows;
        Depths depths;
        load_rows(p, rows, place, channel, lane);
        load_depths(p, depths, place, entries, lane);
        const uint4 mine = entries;
        if (++s < end) {
            place = __ldg(p.step_place + s);
            entries = __ldg(p.entries + static_cast<u64>(s) * 32 + lane);
        }
        u32 weights[4];
        add_depths(p, depths, mine, weights);
        multiply_groups<0, 0>(sum, weights, rows);
    }

    if (cut) {
        if (part > 0) {
            float* to = shared_part + (warp - 1) * PARTS * 128 + lane;
#pragma unroll
            for (int i = 0; i < PARTS * 4; ++i) to[i * 32] = sum[i / 4][i % 4];
        }
        __syncthreads();
        if (part == 0)
            for (int other = 1; other < parts; ++other) {
                const float* from = shared_part + (warp + other - 1) * PARTS * 128 + lane;
#pragma unroll
                for (int i = 0; i < PARTS * 4; ++i) sum[i / 4][i % 4] += from[i * 32];
            }
    }
    if (part > 0 || slot.y == 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const u64 row = static_cast<u64>(blockIdx.y) * p.cells + cell[half];
        if (cell[half] >= 0) store_groups<0>(p, sum, row * CHANNELS + channel, half, lane % 4);
    }
}
