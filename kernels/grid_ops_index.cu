// Turns a NanoVDB index grid and its values into a grid of float32 or int32 values.
//
//   index_to_grid   one launch; the first block writes grid, tree, root and tiles, then come eight
//                   blocks an upper node, one a lower node, and a warp a leaf
//
// Every byte of the result is written here, those without a meaning as 0. Statistics are left out and
// the checksum says that none was computed. Nodes keep their order; offsets change because a leaf
// grows from 96 to 2144 bytes and the root shrinks. An index without a value gives the background.
//
// Neighbouring threads write neighbouring words everywhere; a leaf reads the values of neighbouring
// active voxels, which lie side by side. A leaf moves 2144 + 96 bytes and 4 an active voxel; most are
// written, which the memory takes faster than a copy.
#include "grid_ops.cuh"

#define THREADS 256
#define PARTS 8  // blocks of an upper node
#define LEAF_IN 96
#define LEAF_OUT 2144
#define ROOT_IN 96
#define ROOT_OUT 64

struct IndexToGrid {
    const u32* source;
    u32* out;
    const u32* values;  // 4 bytes each
    u64 value_count;    // 1 or more
    u64 leaf_in, lower_in, upper_in;  // bytes where nodes begin
    u64 leaf_out, lower_out, upper_out, size;
    u32 leaves, lowers, uppers, tiles;
    u32 flags, grid_class, grid_type;
};

__device__ __forceinline__ u32 look_up(const IndexToGrid& m, u64 index) {
    return m.values[index < m.value_count ? index : 0];
}

// Words of grid and tree data that differ from the source.
__device__ __forceinline__ u32 head_word(const IndexToGrid& m, int word) {
    const u64 offsets[4] = {m.leaf_out, m.lower_out, m.upper_out, HEAD_BYTES};
    switch (word) {
        case 2: case 3: return 0xffffffffu;  // checksum
        case 5: return m.flags;
        case 6: return 0;  // the first
        case 7: return 1;  // of one
        case 8: case 160: return static_cast<u32>(m.size);  // 160: blind data, behind everything
        case 9: case 161: return static_cast<u32>(m.size >> 32);
        case 158: return m.grid_class;
        case 159: return m.grid_type;
        case 162: case 164: case 165: return 0;  // count of blind data, of indexed values
    }
    if (word >= 168 && word < 176) {
        const u64 offset = offsets[(word - 168) / 2] - GRID_BYTES;
        return static_cast<u32>(word & 1 ? offset >> 32 : offset);
    }
    return m.source[word];
}

__device__ __forceinline__ void write_head(const IndexToGrid& m) {
    if (threadIdx.x < HEAD_BYTES / 4) m.out[threadIdx.x] = head_word(m, threadIdx.x);
    if (threadIdx.x < ROOT_OUT / 4) {
        const u32* root = at_byte<u32>(m.source, HEAD_BYTES);
        u32 word = threadIdx.x < 7 ? root[threadIdx.x] : 0u;
        if (threadIdx.x == 7) word = look_up(m, *at_byte<u64>(root, 32));
        m.out[HEAD_BYTES / 4 + threadIdx.x] = word;
    }
    for (u32 i = threadIdx.x; i < m.tiles; i += THREADS) {
        const u32* tile = at_byte<u32>(m.source, HEAD_BYTES + ROOT_IN + static_cast<u64>(i) * TILE_BYTES);
        const u64 child = *at_byte<u64>(tile, 8);
        uint4* to = at_byte<uint4>(m.out, HEAD_BYTES + ROOT_OUT + static_cast<u64>(i) * TILE_BYTES);
        u64 moved = 0;
        if (child) moved = (HEAD_BYTES + child - m.upper_in) / UPPER_BYTES * UPPER_BYTES + m.upper_out - HEAD_BYTES;
        to[0] = make_uint4(tile[0], tile[1], static_cast<u32>(moved), static_cast<u32>(moved >> 32));
        to[1] = make_uint4(child ? 0 : tile[4], look_up(m, child ? 0 : *at_byte<u64>(tile, 24)), 0, 0);
    }
}

// Entries [first, first + count) of an internal node and, of its other bytes, the share of this block.
template <int SLOTS, int BYTES, int CHILD_IN, int CHILD_OUT>
__device__ __forceinline__ void write_node(const IndexToGrid& m, u32 node, u64 in, u64 out, u64 child_in,
                                           u64 child_out, int part, int parts) {
    constexpr int MASK = SLOTS / 8, STATS = 32 + 2 * MASK, TABLE = BYTES - 8 * SLOTS;
    in += static_cast<u64>(node) * BYTES;
    out += static_cast<u64>(node) * BYTES;
    const u32* source = at_byte<u32>(m.source, in);
    u32* to = at_byte<u32>(m.out, out);
    for (int i = part * THREADS + threadIdx.x; i < TABLE / 4; i += parts * THREADS)
        to[i] = i < STATS / 4 ? source[i] : 0u;  // box, flags, masks; no statistics
    const u32* is_child = source + (32 + MASK) / 4;
    const u64* table = at_byte<u64>(source, TABLE);
    u64* written = at_byte<u64>(to, TABLE);
    for (int i = part * (SLOTS / parts) + threadIdx.x; i < (part + 1) * (SLOTS / parts); i += THREADS) {
        const u64 entry = table[i];
        if (is_child[i >> 5] >> (i & 31) & 1)
            written[i] = (in + entry - child_in) / CHILD_IN * CHILD_OUT + child_out - out;
        else
            written[i] = look_up(m, entry);
    }
}

__device__ __forceinline__ void write_leaf(const IndexToGrid& m, u32 leaf) {
    const int lane = threadIdx.x & 31;
    const u32* source = at_byte<u32>(m.source, m.leaf_in + static_cast<u64>(leaf) * LEAF_IN);
    u32* to = at_byte<u32>(m.out, m.leaf_out + static_cast<u64>(leaf) * LEAF_OUT);
    if (lane < 24) {
        u32 word = lane < 20 ? source[lane] : 0u;   // no statistics
        if (lane == 3) word &= 0x02ffffffu;         // of the flags, only that there is a box
        to[lane] = word;
    }
    const u64* mask = at_byte<u64>(source, 16);
    const u64 offset = *at_byte<u64>(source, 80), prefix = *at_byte<u64>(source, 88);
    uint4* values = at_byte<uint4>(to, 96);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int word = 2 * i + (lane >> 4), bit = (lane & 15) * 4;  // of slot 4 (32 i + lane)
        const u64 active = mask[word];
        const u64 first = offset + (word ? prefix >> (9 * (word - 1)) & 511 : 0) +
                          __popcll(active & ((1ull << bit) - 1));
        const u32 four = static_cast<u32>(active >> bit) & 15;
        u32 v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
            v[j] = look_up(m, four >> j & 1 ? first + __popc(four & ((1u << j) - 1)) : 0);
        values[32 * i + lane] = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) index_to_grid(const IndexToGrid m) {
    begin_dependent();
    u32 unit = blockIdx.x;
    if (unit == 0) return write_head(m);
    unit -= 1;
    if (unit < PARTS * m.uppers)
        return write_node<UPPER_SLOTS, UPPER_BYTES, LOWER_BYTES, LOWER_BYTES>(
            m, unit / PARTS, m.upper_in, m.upper_out, m.lower_in, m.lower_out, unit % PARTS, PARTS);
    unit -= PARTS * m.uppers;
    if (unit < m.lowers)
        return write_node<LOWER_SLOTS, LOWER_BYTES, LEAF_IN, LEAF_OUT>(
            m, unit, m.lower_in, m.lower_out, m.leaf_in, m.leaf_out, 0, 1);
    const u32 leaf = (unit - m.lowers) * (THREADS / 32) + threadIdx.x / 32;
    if (leaf < m.leaves) write_leaf(m, leaf);
}
