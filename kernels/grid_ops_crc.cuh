// Arithmetic of CRC-32 registers, shared by the kernels on checksums.
//
// A register v is a polynomial modulo P, bit 31 the coefficient of 1: n zero bytes make v x^(8n) of it,
// a word w makes (v + w) x^32.
#pragma once
#include "grid_ops.cuh"

#define DIGITS 7  // of 5 bits in a word

// v x^(32 * 2^k) mod P
__device__ __forceinline__ u32 shift(const u32* tables, int k, u32 v) {
    u32 r = 0;
#pragma unroll
    for (int d = 0; d < DIGITS; ++d) {
        const u32 entry = d ? v >> (5 * d - 2) & 124 : v << 2 & 124;  // in bytes
        r ^= *at_byte<u32>(tables, entry + 128 * (k * DIGITS + d));
    }
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
