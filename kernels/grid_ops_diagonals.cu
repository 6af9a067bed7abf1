// The checksum of a NanoVDB grid: CRC-32 of its head, and CRC-32 of the CRCs of its blocks of 4 KB.
//
//   sum_diagonals    a span of blocks each; two more take the head and the last, longer block
//   fold_diagonals   one block adds up what they found
//
// Word i of block c of N counts (1024 - i) + (N - c) words from the end: that many bring its block to
// an end, and the CRC of the block that of the list. A CRC is linear but for its constants, so words of
// equal i + c weigh the same and may be XORed as they are: 4 KB a block shrink to one word a block
// before any polynomial is multiplied. What is left, one XOR a word, hides behind the memory.
//
// A thread reads 16 bytes, so it adds words 4 q to 4 q + 3 of the blocks 4 k + r of its span along
// u = q + k, for each r of 4 apart; the four are shifted by r words and XORed at the end. Step k of a
// block of 256 threads is 4 blocks of the grid, and thread t reads q = t - k modulo 256: the lowest
// threads run over the end of a block and go on with u + 256.
//
// The 1024 + 4 `steps` words of a span are a message; its register times x^32 for each block behind it
// is its share of the list's. XOR has no order: same bytes, same checksum.
//
// Estimate for 132 multiprocessors at 1.98 GHz: 512 bytes take about 9 instructions of a warp and the
// end of a span of 128 KB 2,000, so at 4.4 TB/s a fifth of the slots are used: memory alone limits it.
#include "grid_ops_crc.cuh"

#ifndef AHEAD
#define AHEAD 2  // steps, of 4 loads of 16 bytes, that a thread has in flight
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 4
#endif
#ifndef STREAMING
#define STREAMING 0  // loads that ask not to be kept
#endif

#define THREADS 256
#define SHIFTS 10  // products: past 1, 2, 4, .. 32 words, then past 32, 64, 128, 256
#define ACROSS 6   // the first of those between warps
#define ROUND 9    // past the words of all threads
#define MOST_STEPS 64
#define BLOCK_WORDS 1024
#define BLOCK_BYTES 4096
#define MOST_WORDS (2 * BLOCK_WORDS)  // of a last block, less than two others

struct Diagonals {
    const u32* tables;  // (SHIFTS, DIGITS, 32)
    const u32* powers;  // (32): x^(32 * 2^k) mod P
    u64 tail_begin, tail_end;     // bytes; the last block of the tail goes on to its end
    u32 head_begin, head_bytes;   // fewer than MOST_WORDS words
    u32 blocks, steps;            // blocks of the tail, the last one included; steps of a span
    const u32* grid;
    u32* found;                   // (parts): of head, last block and spans
    u32* out;                     // (2): head and tail
    u32 parts;                    // blocks of the launch; 1 where the tail has none
};

__device__ __forceinline__ uint4 load16(const uint4* from) {
    return STREAMING ? __ldcs(from) : *from;
}

// The register after `count` words that `word(i)` returns, by the whole block, in thread 0.
template <typename Word>
__device__ __forceinline__ u32 block_register(const u32* tables, int count, const Word& word) {
    __shared__ u32 shared_parts[THREADS / 32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 v = 0;
    for (int i = static_cast<int>(threadIdx.x) - (THREADS - count % THREADS) % THREADS; i < count; i += THREADS)
        v = shift(tables, ROUND, v) ^ (i < 0 ? 0u : word(i));  // before 0 there are zeros
    v = fold(tables, 5, v);
    if (lane == 0) shared_parts[warp] = v;
    __syncthreads();
    if (warp) return 0;
    v = fold(tables + ACROSS * (DIGITS * 32), 3, lane < THREADS / 32 ? shared_parts[lane] : 0u);
    return shift(tables, 0, v);
}

// The register after a message in memory, all ones before it, in thread 0.
__device__ __forceinline__ u32 message_register(const u32* tables, const u32* words, u32 bytes) {
    const int count = bytes / 4;
    u32 v = block_register(tables, count, [&](int i) { return words[i] ^ (i ? 0u : ~0u); });
    if (!count) v = ~0u;
    const unsigned char* rest = reinterpret_cast<const unsigned char*>(words + count);
    for (u32 i = 0; i < (bytes & 3); ++i) v = times_x(v ^ rest[i], 8);
    return v;
}

// What a thread has of one diagonal u, four words for each r: words 4 u to 4 u + 6, kept in two arrays
// of which each word is written once.
__device__ __forceinline__ void keep(uint4* own, uint4* next, int u, uint4 (&a)[4]) {
    own[u] = make_uint4(a[0].x, a[0].y ^ a[1].x, a[0].z ^ a[1].y ^ a[2].x, a[0].w ^ a[1].z ^ a[2].y ^ a[3].x);
    next[u + 1] = make_uint4(a[1].w ^ a[2].z ^ a[3].y, a[2].w ^ a[3].z, a[3].w, 0u);
    for (int r = 0; r < 4; ++r) a[r] = make_uint4(0u, 0u, 0u, 0u);
}

__device__ __forceinline__ uint4 plus(uint4 a, uint4 b) {
    return make_uint4(a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w);
}

// XORs the blocks [first, first + 4 steps) along their diagonals; there are none before 0.
__device__ __forceinline__ void sum_span(const char* tail, long long first, int steps, uint4* own, uint4* next) {
    const int thread = threadIdx.x, skip = first < 0 ? static_cast<int>(-first) : 0;
    const bool wraps = (thread | 31) < steps + 31;  // the same in a warp
    const char* span = tail + first * BLOCK_BYTES;
    uint4 a[4];
    for (int r = 0; r < 4; ++r) a[r] = make_uint4(0u, 0u, 0u, 0u);
    for (int begin = 0; begin < steps; begin += AHEAD) {
        uint4 v[AHEAD][4];
#pragma unroll
        for (int j = 0; j < AHEAD; ++j)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const int k = begin + j, block = 4 * k + r, q = (thread - k) & (THREADS - 1);
                v[j][r] = make_uint4(0u, 0u, 0u, 0u);
                if (k < steps && block >= skip)
                    v[j][r] = load16(reinterpret_cast<const uint4*>(span + static_cast<long long>(block) * BLOCK_BYTES) + q);
            }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int k = begin + j;
            if (wraps && k == thread + 1 && k < steps) keep(own, next, thread, a);
#pragma unroll
            for (int r = 0; r < 4; ++r) a[r] = plus(a[r], v[j][r]);
        }
    }
    keep(own, next, thread < steps - 1 ? thread + THREADS : thread, a);
    if (thread == 0) next[0] = own[THREADS - 1 + steps] = make_uint4(0u, 0u, 0u, 0u);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    sum_diagonals(const Diagonals m) {
    begin_dependent();
    __shared__ u32 shared_tables[SHIFTS * DIGITS * 32];
    __shared__ uint4 shared_own[THREADS + MOST_STEPS], shared_next[THREADS + MOST_STEPS];
    for (int i = threadIdx.x; i < SHIFTS * DIGITS * 32; i += THREADS) shared_tables[i] = m.tables[i];
    const bool alone = m.blocks == 1;
    if (blockIdx.x == 0) {
        __syncthreads();
        const u32 v = message_register(shared_tables, at_byte<u32>(m.grid, m.head_begin), m.head_bytes);
        if (threadIdx.x == 0) m.found[0] = ~v;
        return;
    }
    if (blockIdx.x == 1) {
        __syncthreads();
        const u64 begin = m.tail_begin + static_cast<u64>(m.blocks - 1) * BLOCK_BYTES;
        const u32 v = message_register(shared_tables, at_byte<u32>(m.grid, begin), static_cast<u32>(m.tail_end - begin));
        // Its CRC is ~v; the first of a list meets all ones.
        if (threadIdx.x == 0) m.found[1] = shift(shared_tables, 0, alone ? v : ~v);
        return;
    }
    const int span = 4 * m.steps;
    const u32 behind = (m.parts - 1 - blockIdx.x) * span + 1;
    const long long first = static_cast<long long>(m.blocks) - behind - span;
    sum_span(at_byte<char>(m.grid, m.tail_begin), first, m.steps, shared_own, shared_next);
    __syncthreads();
    const u32* own = reinterpret_cast<const u32*>(shared_own);
    const u32* next = reinterpret_cast<const u32*>(shared_next);
    // All ones before each block, and in the list the complement of each CRC but the first.
    u32 v = block_register(shared_tables, BLOCK_WORDS + span, [&](int i) {
        const bool begins = i < span && first + i >= 0;
        const bool ends = i >= BLOCK_WORDS && first + (i - BLOCK_WORDS) >= 1;
        return own[i] ^ next[i] ^ (begins != ends ? ~0u : 0u);
    });
    if (threadIdx.x >= 32) return;
    v = shift_by(m.powers, behind, __shfl_sync(0xffffffffu, v, 0));
    if (threadIdx.x == 0) m.found[blockIdx.x] = v;
}

// (head, tail) from what was found; of no block of the tail it is 0.
extern "C" __global__ void __launch_bounds__(THREADS) fold_diagonals(const Diagonals m) {
    begin_dependent();
    __shared__ u32 shared_parts[THREADS / 32];
    u32 v = 0;
    for (u32 i = 1 + threadIdx.x; i < m.parts; i += THREADS) v ^= m.found[i];
    for (int d = 16; d; d /= 2) v ^= __shfl_xor_sync(0xffffffffu, v, d);
    if ((threadIdx.x & 31) == 0) shared_parts[threadIdx.x >> 5] = v;
    __syncthreads();
    if (threadIdx.x) return;
    v = 0;
    for (int w = 0; w < THREADS / 32; ++w) v ^= shared_parts[w];
    m.out[0] = m.found[0];
    m.out[1] = m.parts > 1 ? ~v : 0u;
}
