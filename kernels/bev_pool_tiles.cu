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
// example is on the chip at once. Wide features are divided over blocks, which read depths once each:
// 97 to 128 channels in halves, as a warp of 64 needs 96 registers and one of 128 157; more than 128 in
// warps of up to 128, whose rows are then loaded by 8 bytes, for 12 of them on a multiprocessor. Such
// tiles are cut into parts of four steps, as there are more blocks.
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
// CHANNELS C; FEATURES (half or e4m3), DEPTHS, RESULTS: pool.cuh; ALIGN channels can be loaded at once;
// WARPS a block; C / GROUPS channels a warp, whose rows are loaded in PASSES; WHOLE_SECTORS: see
// store_sectors.
#include "pool.cuh"

#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
#ifndef PASSES
#define PASSES 1
#endif
#ifndef WHOLE_SECTORS
#define WHOLE_SECTORS 0
#endif
constexpr int WARP_CHANNELS = CHANNELS / GROUPS;
constexpr int PASS_CHANNELS = WARP_CHANNELS / PASSES;
constexpr int PARTS = (WARP_CHANNELS + 7) / 8;  // products of a step
constexpr int ELEMENT = Bytes<FEATURES>::value;
static_assert(CHANNELS % GROUPS == 0, "channels divide over the blocks");
static_assert(PASSES == 1 || WARP_CHANNELS % (8 * PASSES) == 0, "products divide over the passes");

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

// Channels of a pass lie in groups: as wide vectors as fit eight lanes and the alignment.
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
constexpr int WORDS = words_of_row(PASS_CHANNELS);

struct Rows {
    u32 word[4][WORDS];  // four rows of features, this lane's channels of every group of a pass
};

template <int BASE, int WORD, int END>
__device__ __forceinline__ void load_groups(Rows& rows, int row, const char* from, int g) {
    if constexpr (BASE < END) {
        constexpr int VEC = vector_of(END - BASE), N = words_of(VEC);
        u32 word[N] = {};
        if (VEC > 1 || BASE + 8 <= END || BASE + g < END)
            load_words<VEC * ELEMENT>(word, from + (BASE + g * VEC) * ELEMENT);
#pragma unroll
        for (int i = 0; i < N; ++i) rows.word[row][WORD + i] = word[i];
        load_groups<BASE + 8 * VEC, WORD + N, END>(rows, row, from, g);
    }
}

// Channel `i` of a vector as the right operand wants it: its halves of rows 0, 1 and of rows 2, 3.
// Bytes are paired before they become halves, so that a conversion gives what a product reads.
template <int WORD>
__device__ __forceinline__ void channel_rows(u32 (&pair)[2], const Rows& rows, int i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int at = WORD + (FEATURES == HALF ? i / 2 : i / 4);
        const u32 even = rows.word[2 * half][at], odd = rows.word[2 * half + 1][at];
        if constexpr (FEATURES == HALF) {
            pair[half] = i % 2 ? __byte_perm(even, odd, 0x7632) : __byte_perm(even, odd, 0x5410);
        } else {
            const u32 two = i % 4 < 2 ? __byte_perm(even, odd, 0x5140) : __byte_perm(even, odd, 0x7362);
            pair[half] = i % 2 ? halves_from_e4m3<true>(two) : halves_from_e4m3<false>(two);
        }
    }
}

template <int BASE, int WORD, int END>
__device__ __forceinline__ void multiply_groups(float (&sum)[PARTS][4], const u32 (&weights)[4], const Rows& rows) {
    if constexpr (BASE < END) {
        constexpr int VEC = vector_of(END - BASE);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            u32 pair[2];
            channel_rows<WORD>(pair, rows, i);
            mma_m16n8k16_f16(sum[BASE / 8 + i], weights, pair);
        }
        multiply_groups<BASE + 8 * VEC, WORD + words_of(VEC), END>(sum, weights, rows);
    }
}

// Lanes 2 i and 2 i + 1 swap half of their results, so that both write 16 bytes of the same 32 at a
// time: a sector of the cache that is written in two halves costs twice. `at` is the even lane's.
template <int COUNT>
__device__ __forceinline__ void store_sectors(void* out, u64 at, const float (&v)[COUNT], bool odd, bool write) {
    constexpr int SIZE = Bytes<RESULTS>::value;
    char* to = static_cast<char*>(out) + at * SIZE + (odd ? 16 : 0);
#pragma unroll
    for (int byte = 0; byte < COUNT * SIZE; byte += 32) {
        u32 of_even[4], of_odd[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int low = byte / SIZE + i * 4 / SIZE, high = low + 16 / SIZE;
            const u32 first = RESULTS == HALF ? pack_half2(v[low], v[low + 1]) : __float_as_uint(v[low]);
            const u32 second = RESULTS == HALF ? pack_half2(v[high], v[high + 1]) : __float_as_uint(v[high]);
            const u32 given = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
            of_even[i] = odd ? given : first;
            of_odd[i] = odd ? second : given;
        }
        if (write) {
            *reinterpret_cast<uint4*>(to + byte) = make_uint4(of_even[0], of_even[1], of_even[2], of_even[3]);
            *reinterpret_cast<uint4*>(to + byte + COUNT * SIZE) =
                make_uint4(of_odd[0], of_odd[1], of_odd[2], of_odd[3]);
        }
    }
}

template <int BASE, int END>
__device__ __forceinline__ void store_groups(const PoolTiles& p, const float (&sum)[PARTS][4], u64 at, int half,
                                             int t, bool write) {
    if constexpr (BASE < END) {
        constexpr int VEC = vector_of(END - BASE);
        float v[2 * VEC];
#pragma unroll
        for (int i = 0; i < 2 * VEC; ++i) v[i] = sum[BASE / 8 + i % VEC][2 * half + i / VEC] * p.scale;
        constexpr int SIZE = Bytes<RESULTS>::value;
        if constexpr (WHOLE_SECTORS && 2 * VEC * SIZE >= 32 && WARP_CHANNELS * SIZE % 16 == 0) {
            store_sectors(p.out, at + BASE + 2 * VEC * (t & ~1), v, t & 1, write);
        } else if constexpr (BASE + 8 * VEC <= END) {
            if (write) store_results<RESULTS, WARP_CHANNELS, 2 * VEC>(p.out, at + BASE + 2 * VEC * t, v);
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i)  // VEC is 1
                if (write && BASE + 2 * t + i < END)
                    store_results<RESULTS, 1, 1>(p.out, at + BASE + 2 * t + i, v + i);
        }
        store_groups<BASE + 8 * VEC, END>(p, sum, at, half, t, write);
    }
}

// Offsets inside a batch item fit 31 bits; the caller checks it.
template <int BASE>
__device__ __forceinline__ void load_rows(const PoolTiles& p, Rows& rows, u32 place, int first_channel, int lane) {
    const int v = (place >> 16 & 0xff) * 16 + lane % 4 * 4;
    const int column = (place >> 24) * p.feature_camera + (place & 0xffff) * p.feature_column + first_channel;
    const char* from = static_cast<const char*>(p.features) + (blockIdx.y * p.feature_batch + column) * ELEMENT;
#pragma unroll
    for (int row = 0; row < 4; ++row)  // rows below the image have no weight; any finite value will do
        load_groups<BASE, 0, BASE + PASS_CHANNELS>(rows, row, from + min(v + row, p.rows - 1) * p.feature_row * ELEMENT,
                                                   lane / 4);
}

// A pass after the other: the rows of fewer channels are in registers at a time.
template <int BASE>
__device__ __forceinline__ void multiply_passes(const PoolTiles& p, float (&sum)[PARTS][4], const u32 (&weights)[4],
                                                Rows& rows, u32 place, int first_channel, int lane) {
    multiply_groups<BASE, 0, BASE + PASS_CHANNELS>(sum, weights, rows);
    constexpr int NEXT = BASE + PASS_CHANNELS;
    if constexpr (NEXT < WARP_CHANNELS) {
        load_rows<NEXT>(p, rows, place, first_channel, lane);
        multiply_passes<NEXT>(p, sum, weights, rows, place, first_channel, lane);
    }
}

template <int BASE>
__device__ __forceinline__ void store_passes(const PoolTiles& p, const float (&sum)[PARTS][4], u64 at, int half, int t,
                                             bool write) {
    if constexpr (BASE < WARP_CHANNELS) {
        store_groups<BASE, BASE + PASS_CHANNELS>(p, sum, at, half, t, write);
        store_passes<BASE + PASS_CHANNELS>(p, sum, at, half, t, write);
    }
}

// Left operand of a step: the sum of depths of every (cell, row) of this lane.
//
// Everything is asked for before anything is used: entries that see nothing read some depth, too.
struct Depths {
    float w[8];      // cell g rows 0 and 1 of the lane, cell g + 8 the same; then rows 2 and 3
    float2 norm[4];  // of the rows of the lane
};

__device__ __forceinline__ int entry_of(const uint4& entries, int i) {
    const u32 pair = i / 2 == 0 ? entries.x : i / 2 == 1 ? entries.y : i / 2 == 2 ? entries.z : entries.w;
    return i % 2 ? pair >> 16 : pair & 0xffff;
}

// Depth `i` of the lane, `k` behind the first. Where it lies is worked out again for the rare second
// one: registers decide how many warps are at work.
__device__ __forceinline__ float depth_of(const PoolTiles& p, u32 place, int entry, int i, int k, int lane) {
    const char* from = static_cast<const char*>(p.depth) + blockIdx.y * p.depth_batch * Bytes<DEPTHS>::value;
    const int base = (place >> 24) * p.depth_camera + (place & 0xffff) * p.depth_column +
                     ((place >> 16 & 0xff) * 16 + lane % 4 * 4) * p.depth_row;
    const int at = base + (i % 2 + i / 4 * 2) * p.depth_row + ((entry & 1023) + k) * p.depth_bin;
    return load_depth<DEPTHS>(from, entry ? at : 0);
}

__device__ __forceinline__ void load_depths(const PoolTiles& p, Depths& depths, u32 place, const uint4& entries,
                                            int lane) {
#pragma unroll
    for (int i = 0; i < 8; ++i) depths.w[i] = depth_of(p, place, entry_of(entries, i), i, 0, lane);
    const int first_row = (place >> 16 & 0xff) * 16 + lane % 4 * 4;
    const u64 camera = blockIdx.y * p.norm_batch + static_cast<u64>(place >> 24) * p.rows * p.cols;
#pragma unroll
    for (int row = 0; row < 4; ++row)
        depths.norm[row] =
            load_norm(p.norms, camera + min(first_row + row, p.rows - 1) * p.cols + (place & 0xffff));
}

__device__ __forceinline__ void add_depths(const PoolTiles& p, Depths& depths, u32 place, const uint4& entries,
                                           int lane, u32 (&weights)[4]) {
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
                depths.w[i] += point_weight(depth_of(p, place, entry_of(entries, i), i, k, lane),
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
        load_rows<0>(p, rows, place, channel, lane);
        load_depths(p, depths, place, entries, lane);
        const uint4 mine = entries;
        const u32 here = place;
        if (++s < end) {
            place = __ldg(p.step_place + s);
            entries = __ldg(p.entries + static_cast<u64>(s) * 32 + lane);
        }
        u32 weights[4];
        add_depths(p, depths, here, mine, lane, weights);
        multiply_passes<0>(p, sum, weights, rows, here, channel, lane);
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
        store_passes<0>(p, sum, row * CHANNELS + channel, half, lane % 4, cell[half] >= 0);
    }
}
