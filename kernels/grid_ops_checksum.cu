// CRC-32 (that of zlib) of any bytes; of the head of a NanoVDB grid and of the CRCs of all chunks
// behind it.
//
//   crc_chunks   a warp a chunk; each block folds the chunks it has, then all blocks are XORed
//
// A register v of the CRC is a polynomial modulo P: n zero bytes make v x^(8n) of it, a word w makes
// (v + w) x^32. So a message may be cut anywhere, and each piece be brought to the end of the message
// by one product. Three levels do this:
//   1. chunk: lane l takes the words l, l + 32, ... (a warp reads 128 bytes at once) and brings its
//      register on by 128 bytes a step; 32 lanes fold in pairs, 1, 2, 4, 8, 16 words apart.
//   2. block: warp w takes the chunks w, w + 8, ... of its span and folds with the others as lanes do.
//      Of plain bytes (`plain`) the chunks are the message; of a checksum it is the list of their
//      CRCs, a word each.
//   3. all: the block's sum times x^(8 bytes behind it), XORed into the result. XOR has no order, so
//      neither does the result depend on one.
// What a piece lacks is put before it: leading zeros leave a register of zero as it is.
//
// A product with a fixed power of x is 7 look-ups by 5 bits in shared memory, tables made by the host.
// 32 entries of a table lie in 32 banks and equal entries are one address: no conflicts, from one copy
// of 896 bytes. Slices of 8 bits would be 4 look-ups, each with about 3 conflicts. Only the product of
// level 3 is done bit by bit, once a block.
//
// Estimate: 128 bytes take a warp 7 cycles of shared memory and about 9 of integer units, so 132
// multiprocessors at 1.8 GHz read at most 3.3 TB/s; not measured yet. One launch, nothing waits.
#include "grid_ops.cuh"

#define WARPS 8
#define SHIFTS 10  // products: past 1, 2, 4, .. 32 words, then past 1, 2, 4, 8 pieces of level 2
#define PIECES 6   // the first of those of level 2
#define DIGITS 7   // of 5 bits in a word
#define BATCH 8    // words of a lane in flight

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

// v x^(32 * 2^k) mod P
__device__ __forceinline__ u32 shift(const u32* tables, int k, u32 v) {
    const u32* t = tables + k * (DIGITS * 32);
    u32 r = t[v & 31];
#pragma unroll
    for (int d = 1; d < DIGITS; ++d) r ^= t[d * 32 + (v >> (5 * d) & 31)];
    return r;
}

// v x^bits mod P, bit by bit; bit 31 of a register is x^0.
__device__ __forceinline__ u32 times_x(u32 v, u32 bits) {
    for (u32 i = 0; i < bits; ++i) v = (v >> 1) ^ (v & 1 ? 0xedb88320u : 0u);
    return v;
}

// Folds the registers of `1 << levels` lanes, each a piece before the next, into lane 0.
__device__ __forceinline__ u32 fold(const u32* tables, int levels, u32 v) {
    for (int k = 0; k < levels; ++k) {
        const u32 right = __shfl_down_sync(0xffffffffu, v, 1 << k);
        v = shift(tables, k, v) ^ right;
    }
    return v;
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
    v = __shfl_sync(0xffffffffu, shift(tables, 0, fold(tables, 5, v)), 0);
    if (!count) v = start;
    const unsigned char* rest = reinterpret_cast<const unsigned char*>(words + count);
    for (u32 i = 0; i < (bytes & 3); ++i) v = times_x(v ^ rest[i], 8);
    return v;
}

// a b mod P
__device__ __forceinline__ u32 product(u32 a, u32 b) {
    u32 r = 0;
#pragma unroll 8
    for (int i = 0; i < 32; ++i) {
        r ^= a & 0x80000000u ? b : 0u;
        a <<= 1;
        b = (b >> 1) ^ (b & 1 ? 0xedb88320u : 0u);
    }
    return r;
}

// v x^(32 words) mod P by a warp, in all lanes. P is primitive: x^(2^32 - 1) = 1, so the words above
// the 32 bits of `powers` (16 GiB) are added to those below.
__device__ __forceinline__ u32 shift_by(const u32* powers, u64 words, u32 v) {
    const int lane = threadIdx.x & 31;
    for (int i = 0; i < 2; ++i) words = (words & 0xffffffffu) + (words >> 32);  // the first may carry
    u32 factor = words >> lane & 1 ? powers[lane] : 0x80000000u;
    for (int d = 16; d; d /= 2) factor = product(factor, __shfl_xor_sync(0xffffffffu, factor, d));
    return product(v, factor);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 6) crc_chunks(const Checksum m) {
    begin_dependent();
    __shared__ u32 shared_tables[SHIFTS * DIGITS * 32];
    __shared__ u32 shared_sums[WARPS];
    for (int i = threadIdx.x; i < SHIFTS * DIGITS * 32; i += 32 * WARPS) shared_tables[i] = m.tables[i];
    __syncthreads();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const u32* pieces = shared_tables + PIECES * (DIGITS * 32);
    const u32 blocks = gridDim.x - (m.extra_bytes ? 1 : 0);
    if (blockIdx.x == blocks) {
        if (warp != 0) return;
        const u32 start = m.plain && m.chunks ? 0u : ~0u;
        const u32 v = chunk_register(shared_tables, at_byte<u32>(m.data, m.extra_begin), m.extra_bytes, start);
        if (lane == 0 && m.plain) atomicXor(m.sum, v);
        if (lane == 0 && !m.plain) *m.head = ~v;
        return;
    }
    const u32 span = WARPS * m.rounds, behind = (blocks - 1 - blockIdx.x) * span;
    long long chunk = static_cast<long long>(m.chunks) - behind - span + warp;
    u32 sum = 0;
    for (u32 r = 0; r < m.rounds; ++r, chunk += WARPS) {
        sum = shift(pieces, 3, sum);
        if (chunk < 0) continue;  // only in the first block
        const u64 begin = m.begin + static_cast<u64>(chunk) * m.chunk_bytes;
        const u32 bytes = chunk + 1 == m.chunks ? static_cast<u32>(m.end - begin) : m.chunk_bytes;
        const bool first = chunk + m.chunks_before == 0;
        const u32 v = chunk_register(shared_tables, at_byte<u32>(m.data, begin), bytes, m.plain && !first ? 0u : ~0u);
        sum ^= m.plain || first ? v : ~v;  // the CRC is ~v, and the first of a list meets all ones
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
