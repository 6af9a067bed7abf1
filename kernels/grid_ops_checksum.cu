// CRC-32 (that of zlib) of any bytes; of the head of a NanoVDB grid and of the CRCs of its nodes, as
// versions before 32.6.1 have it.
//
//   crc_messages   some messages; a warp a chunk, each block folds the chunks it has, then all blocks
//                  of a message are XORed
//   crc_rows       the same of rows of which the device alone knows how many there are
//   crc_chunks     the same for one message, or for the nodes of one kind
//
// A register v of the CRC is a polynomial modulo P: n zero bytes make v x^(8n) of it, a word w makes
// (v + w) x^32. So a message may be cut anywhere, and each piece be brought to the end of the message
// by one product. Three levels do this:
//   1. chunk: lane l takes the words l, l + 32, ... (a warp reads 128 bytes at once) and brings its
//      register on by 128 bytes a step; 32 lanes fold in pairs, 1, 2, 4, 8, 16 words apart. Whole
//      blocks of 4 KB have a way of their own, two at a time, which asks no word for its place.
//   2. block: warp w takes the chunks w, w + 8, ... of its span and folds with the others as lanes do.
//      Of plain bytes (`plain`) the chunks are the message; of a checksum it is the list of their
//      CRCs, a word each.
//   3. all: the block's sum times x^(8 bytes behind it), XORed into the result. XOR has no order, so
//      neither does the result depend on one.
// What a piece lacks is put before it: leading zeros leave a register of zero as it is.
//
// A product with a fixed power of x is 7 look-ups by 5 bits in shared memory, tables made by the host.
// 32 entries of a table lie in 32 banks and equal entries are one address: no conflicts, from one copy
// of 896 bytes. The product of whole blocks, past 128 bytes, is 6 look-ups by 6 or 5 bits in tables of
// which every lane has a copy in a bank of its own (32 KB); offsets in bytes keep a look-up at a shift,
// one logical operation and the load. Only the product of level 3 is done bit by bit, once a block.
//
// Estimate from the code for 9.0: 128 bytes take 13 operations of the integer units and 6 of shared
// memory, and 4 KB another 64 to fold, so 132 multiprocessors at 1.98 GHz read at most 4.4 TB/s. One
// launch, nothing waits.
#include "grid_ops_crc.cuh"

#define WARPS 8
#define SHIFTS 10  // products: past 1, 2, 4, .. 32 words, then past 1, 2, 4, 8 pieces of level 2
#define PIECES 6   // the first of those of level 2
#define BATCH 8    // words of a lane in flight
#define BLOCK_BYTES 4096
#define BLOCK_BATCH 16     // the same in a whole block
#define WIDE_DIGITS 6      // of 6 and 5 bits: the product with x^1024, one copy of its tables a lane
#define WIDE_ENTRIES 256   // 2 of 64, 4 of 32

struct Checksum {
    const u32* data;
    const u32* tables;  // (SHIFTS, DIGITS, 32)
    const u32* powers;  // (32): x^(32 * 2^k) mod P
    u64 begin, end;     // bytes of the chunks; the last one goes on to the end
    u32 chunk_bytes, chunks, rounds;
    u32 chunks_before, chunks_after;  // of other launches with the same result
    u64 extra_begin;                  // one more block takes these bytes, where there are any:
    u32 extra_bytes;                  // the head of a grid, or what follows plain chunks
    int plain;
    u32* head;                        // CRC of the head
    u32* sum;                         // the other CRC, all ones before the first launch
};

struct Messages {  // up to eight
    const u32* tables;  // as of a Checksum
    const u32* powers;
    u32* sums;          // all ones before the launch
    const u32* data[8];
    u64 bytes[8];
    u32 block_end[8];  // blocks of each message and all before it, at least one each
    u32 rounds;
};

struct Rows {  // up to eight messages, each some rows of one size
    const u32* tables;  // as of a Checksum
    const u32* powers;
    u32* sums;            // zero before the launch; then the complement of each CRC
    const u32* data[8];
    const u32* count[8];  // rows that there are; they may be more than there is room for
    u32 capacity[8];      // rows that there is room for
    u32 row_bytes[8];
    u32 messages;         // blocks of the launch: some, and two for each of these
};

// First bit and first entry of a digit of the wide tables.
__device__ __forceinline__ constexpr int wide_bit(int d) { return d < 2 ? 6 * d : 12 + 5 * (d - 2); }
__device__ __forceinline__ constexpr int wide_entry(int d) { return d < 2 ? 64 * d : 128 + 32 * (d - 2); }

// Fills the wide tables from those of five bits: copy l of entry e is word 32 e + l, in bank l.
__device__ __forceinline__ void fill_wide(const u32* tables, u32* wide) {
    for (int e = threadIdx.x; e < WIDE_ENTRIES; e += 32 * WARPS) {
        const int d = e < 128 ? e / 64 : 2 + (e - 128) / 32;
        const u32 v = shift(tables, 5, static_cast<u32>(e - wide_entry(d)) << wide_bit(d));
        for (int i = 0; i < 32; ++i) wide[32 * e + ((e + i) & 31)] = v;
    }
}

// v x^1024 mod P, from the copy of a lane: bytes 4 lane to 4 lane + 3 of every entry of 128.
__device__ __forceinline__ u32 shift_wide(const u32* wide, u32 lane_bytes, u32 v) {
    u32 r = 0;
#pragma unroll
    for (int d = 0; d < WIDE_DIGITS; ++d) {
        const u32 mask = (d < 2 ? 63 : 31) << 7;
        const u32 moved = wide_bit(d) < 7 ? v << (7 - wide_bit(d)) : v >> (wide_bit(d) - 7);
        r ^= *at_byte<u32>(wide, ((moved & mask) | lane_bytes) + 128 * wide_entry(d));
    }
    return r;
}

// The registers after a lane's words of COUNT whole blocks, each with `start` before it; what
// follows in one does not wait for the other.
template <int COUNT>
__device__ __forceinline__ void block_lanes(const u32* wide, const u32* const (&words)[COUNT],
                                            const u32 (&start)[COUNT], u32 (&v)[COUNT]) {
    constexpr int BATCH_EACH = BLOCK_BATCH / COUNT;
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int c = 0; c < COUNT; ++c) v[c] = 0;
#pragma unroll 2  // all of it would be 20 KB of code
    for (int b = 0; b < BLOCK_BYTES / 4 / 32; b += BATCH_EACH) {
        u32 w[COUNT][BATCH_EACH];
#pragma unroll
        for (int j = 0; j < BATCH_EACH; ++j)
#pragma unroll
            for (int c = 0; c < COUNT; ++c) w[c][j] = __ldcs(words[c] + 32 * (b + j) + lane);
#pragma unroll
        for (int c = 0; c < COUNT; ++c) w[c][0] ^= b + lane ? 0u : start[c];
#pragma unroll
        for (int j = 0; j < BATCH_EACH; ++j)
#pragma unroll
            for (int c = 0; c < COUNT; ++c) v[c] = shift_wide(wide, 4 * lane, v[c]) ^ w[c][j];
    }
}

// What the lanes hold of two chunks brought to their ends: of the first in lane 0, of the other in
// lane 1. Even lanes go on with the one, odd lanes with the other, at the cost of one chunk.
__device__ __forceinline__ u32 fold_two(const u32* tables, u32 first, u32 other) {
    const bool odd = threadIdx.x & 1;
    const u32 mine = odd ? other : first;
    const u32 given = __shfl_xor_sync(0xffffffffu, odd ? first : other, 1);
    u32 v = shift(tables, 0, odd ? given : mine) ^ (odd ? mine : given);
#pragma unroll
    for (int k = 1; k < 5; ++k) v = shift(tables, k, v) ^ __shfl_down_sync(0xffffffffu, v, 1 << k);
    return shift(tables, 0, v);
}

// What the lanes hold brought to the end of their chunk, in all lanes.
__device__ __forceinline__ u32 fold_lanes(const u32* tables, u32 v) {
    return __shfl_sync(0xffffffffu, shift(tables, 0, fold(tables, 5, v)), 0);
}

// The register after `bytes`, `start` before, by a warp, in all lanes.
__device__ __forceinline__ u32 chunk_register(const u32* tables, const u32* words, u32 bytes, u32 start) {
    const int lane = threadIdx.x & 31, count = bytes / 4;
    const int batches = (count + 32 * BATCH - 1) / (32 * BATCH);
    int i = count - batches * 32 * BATCH + lane;  // before 0 there are zeros
    u32 v = 0;
    for (int b = 0; b < batches; ++b) {
        u32 w[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {
            const int at = i + 32 * j;
            w[j] = at < 0 ? 0u : __ldcs(words + at) ^ (at ? 0u : start);
        }
#pragma unroll
        for (int j = 0; j < BATCH; ++j) v = shift(tables, 5, v) ^ w[j];
        i += 32 * BATCH;
    }
    v = count ? fold_lanes(tables, v) : start;
    const unsigned char* rest = reinterpret_cast<const unsigned char*>(words + count);
    for (u32 i = 0; i < (bytes & 3); ++i) v = times_x(v ^ rest[i], 8);
    return v;
}

// What block `index` of `count` adds to the result.
__device__ __forceinline__ void sum_chunks(const Checksum& m, u32 index, u32 count) {
    __shared__ u32 shared_tables[SHIFTS * DIGITS * 32];
    __shared__ u32 shared_wide[WIDE_ENTRIES * 32];
    __shared__ u32 shared_sums[WARPS];
    for (int i = threadIdx.x; i < SHIFTS * DIGITS * 32; i += 32 * WARPS) shared_tables[i] = m.tables[i];
    __syncthreads();
    if (m.chunk_bytes == BLOCK_BYTES) fill_wide(shared_tables, shared_wide);
    __syncthreads();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const u32* pieces = shared_tables + PIECES * (DIGITS * 32);
    const u32 blocks = count - (m.extra_bytes ? 1 : 0);
    if (index == blocks) {
        if (warp != 0) return;
        const u32 start = m.plain && m.chunks ? 0u : ~0u;
        const u32 v = chunk_register(shared_tables, at_byte<u32>(m.data, m.extra_begin), m.extra_bytes, start);
        if (lane == 0 && m.plain) atomicXor(m.sum, v);
        if (lane == 0 && !m.plain) *m.head = ~v;
        return;
    }
    const u32 span = WARPS * m.rounds, behind = (blocks - 1 - index) * span;
    long long chunk = static_cast<long long>(m.chunks) - behind - span + warp;
    u32 sum = 0;
    const u32 start = m.plain ? 0u : ~0u;  // but before the very first
    for (u32 r = 0; r < m.rounds;) {
        const bool first = chunk + m.chunks_before == 0;
        const long long next = chunk + WARPS;
        // Two whole blocks at once; the last chunk may be longer.
        if (m.chunk_bytes == BLOCK_BYTES && r + 1 < m.rounds && chunk >= 0 && next + 1 < m.chunks) {
            const u64 begin = m.begin + static_cast<u64>(chunk) * BLOCK_BYTES;
            const u32* words[2] = {at_byte<u32>(m.data, begin), at_byte<u32>(m.data, begin + WARPS * BLOCK_BYTES)};
            const u32 starts[2] = {first ? ~0u : start, start};
            u32 v[2];
            block_lanes<2>(shared_wide, words, starts, v);
            const u32 both = fold_two(shared_tables, v[0], v[1]);
            const u32 one = __shfl_sync(0xffffffffu, both, 0), two = __shfl_sync(0xffffffffu, both, 1);
            sum = shift(pieces, 3, sum) ^ (m.plain || first ? one : ~one);
            sum = shift(pieces, 3, sum) ^ (m.plain ? two : ~two);
            r += 2, chunk += 2 * WARPS;
            continue;
        }
        sum = shift(pieces, 3, sum);
        if (chunk >= 0) {  // less only in the first block
            const u64 begin = m.begin + static_cast<u64>(chunk) * m.chunk_bytes;
            const u32 bytes = chunk + 1 == m.chunks ? static_cast<u32>(m.end - begin) : m.chunk_bytes;
            const u32* words[1] = {at_byte<u32>(m.data, begin)};
            const u32 starts[1] = {first ? ~0u : start};
            u32 v[1];
            if (m.chunk_bytes == BLOCK_BYTES && bytes == BLOCK_BYTES) {
                block_lanes<1>(shared_wide, words, starts, v);
                v[0] = fold_lanes(shared_tables, v[0]);
            } else {
                v[0] = chunk_register(shared_tables, words[0], bytes, starts[0]);
            }
            sum ^= m.plain || first ? v[0] : ~v[0];  // the CRC is ~v, and the first of a list meets all ones
        }
        ++r, chunk += WARPS;
    }
    if (lane == 0) shared_sums[warp] = sum;
    __syncthreads();
    if (warp != 0) return;
    sum = fold(pieces, 3, lane < WARPS ? shared_sums[lane] : 0u);
    if (!m.plain) sum = shift(shared_tables, 0, sum);
    sum = __shfl_sync(0xffffffffu, sum, 0);
    const u64 words = m.plain ? static_cast<u64>(behind) * (m.chunk_bytes / 4) + m.extra_bytes / 4
                              : static_cast<u64>(behind) + m.chunks_after;
    if (words) sum = shift_by(m.powers, words, sum);
    if (m.plain) sum = times_x(sum, 8 * (m.extra_bytes & 3));
    if (lane == 0) atomicXor(m.sum, sum);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 5) crc_chunks(const Checksum m) {
    begin_dependent();
    sum_chunks(m, blockIdx.x, gridDim.x);
}

// Whole chunks of a message; what follows them has 1 to 4096 bytes and a block of its own.
__device__ __forceinline__ u32 chunks_of(u64 bytes) {
    return bytes ? static_cast<u32>((bytes - 1) / BLOCK_BYTES) : 0u;
}

// What block `index` of `count` adds to the complement of the CRC of a message.
__device__ __forceinline__ void sum_message(const u32* tables, const u32* powers, const u32* data, u64 bytes,
                                            u32 rounds, u32 index, u32 count, u32* sum) {
    if (!bytes) {
        if (threadIdx.x == 0) atomicXor(sum, ~0u);
        return;
    }
    Checksum one;
    one.data = data, one.tables = tables, one.powers = powers;
    one.chunk_bytes = BLOCK_BYTES, one.chunks = chunks_of(bytes), one.rounds = rounds;
    one.begin = 0, one.end = one.extra_begin = static_cast<u64>(one.chunks) * BLOCK_BYTES;
    one.chunks_before = one.chunks_after = 0;
    one.extra_bytes = static_cast<u32>(bytes - one.end);
    one.plain = 1, one.head = nullptr, one.sum = sum;
    sum_chunks(one, index, count);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 5) crc_messages(const Messages m) {
    begin_dependent();
    int i = 0;
    while (blockIdx.x >= m.block_end[i]) ++i;  // the last one ends with the launch
    const u32 begin = i ? m.block_end[i - 1] : 0;
    sum_message(m.tables, m.powers, m.data[i], m.bytes[i], m.rounds, blockIdx.x - begin, m.block_end[i] - begin,
                m.sums + i);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 5) crc_rows(const Rows m) {
    begin_dependent();
    __shared__ u64 shared_bytes[8];
    if (threadIdx.x < m.messages) {
        const u32 rows = *m.count[threadIdx.x], room = m.capacity[threadIdx.x];
        shared_bytes[threadIdx.x] = static_cast<u64>(rows < room ? rows : room) * m.row_bytes[threadIdx.x];
    }
    __syncthreads();
    u32 chunks = 0;
    for (u32 i = 0; i < m.messages; ++i) chunks += chunks_of(shared_bytes[i]);
    // Shared out as the host does it for crc_messages: a message takes a block for what follows its
    // chunks, and less than one more for rounding up. Blocks that are left have nothing to do.
    const u32 warps = WARPS * (gridDim.x - 2 * m.messages);
    const u32 rounds = chunks > warps ? (chunks + warps - 1) / warps : 1u;
    u32 begin = 0;
    for (u32 i = 0; i < m.messages; ++i) {
        const u32 blocks = 1 + (chunks_of(shared_bytes[i]) + WARPS * rounds - 1) / (WARPS * rounds);
        if (blockIdx.x - begin < blocks) {
            sum_message(m.tables, m.powers, m.data[i], shared_bytes[i], rounds, blockIdx.x - begin, blocks, m.sums + i);
            return;
        }
        begin += blocks;
    }
}
