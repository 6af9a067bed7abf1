// Shared by the kernels that pool camera features: how features, depths and results lie in memory.
//
// FEATURES: 0 float, 1 half, 2 e4m3 (8 bits, finite: 0x7f is NaN, largest 448).
// DEPTHS and RESULTS: 0 float, 1 half.
// LOGITS: 0, depths are the weights of points; 1, they are logits whose softmax over the bins of a
// pixel is, and `norms` hold (largest, 1 / sum) of each pixel (depth_softmax.cu).
#pragma once
#include "mma.cuh"

#ifndef LOGITS
#define LOGITS 0
#endif

enum { FLOAT, HALF, E4M3 };

// ---- raw instructions -----------------------------------------------------------------------------

// Two e4m3, the lower or the UPPER two of a word, to two halves: exact, NaN stays NaN.
template <bool UPPER>
__device__ __forceinline__ u32 halves_from_e4m3(u32 word) {
#if __CUDA_ARCH__ >= 890 && !defined(DRIVERT_CPU_SHIM)
    u32 r;
    if constexpr (UPPER)
        asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\ncvt.rn.f16x2.e4m3x2 %0, h;\n}\n" : "=r"(r) : "r"(word));
    else
        asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\ncvt.rn.f16x2.e4m3x2 %0, l;\n}\n" : "=r"(r) : "r"(word));
    return r;
#else
    // Shifted to the exponent of a half the value is 2^8 too small; 0x7f becomes the NaN of halves.
    float v[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 x = word >> (8 * i + 16 * UPPER) & 0xffu, magnitude = x & 0x7fu;
        const float exact = __uint_as_float(magnitude << 20) * 0x1p120f;
        v[i] = magnitude == 0x7fu ? __uint_as_float(0x7fc00000u) : x & 0x80u ? -exact : exact;
    }
    return pack_half2(v[0], v[1]);
#endif
}

// a * b + c on two halves, each rounded once.
__device__ __forceinline__ u32 fma_half2(u32 a, u32 b, u32 c) {
#ifdef DRIVERT_CPU_SHIM
    const float2 x = unpack_half2(a), y = unpack_half2(b), z = unpack_half2(c);
    u32 r = 0;
    for (int i = 0; i < 2; ++i) {
        const double sum = static_cast<double>(i ? x.y : x.x) * (i ? y.y : y.x) + (i ? z.y : z.x);
        const _Float16 half = static_cast<_Float16>(sum);
        unsigned short bits;
        memcpy(&bits, &half, 2);
        r |= static_cast<u32>(bits) << (16 * i);
    }
    return r;
#else
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;\n" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
#endif
}

// ---- memory -----------------------------------------------------------------------------------------

// BYTES neighbouring bytes, in words; less than a word lies in its low bits.
template <int BYTES>
__device__ __forceinline__ void load_words(u32 (&word)[BYTES < 4 ? 1 : BYTES / 4], const void* at) {
    if constexpr (BYTES == 16) {
        const uint4 v = __ldg(static_cast<const uint4*>(at));
        word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
    } else if constexpr (BYTES == 8) {
        const uint2 v = __ldg(static_cast<const uint2*>(at));
        word[0] = v.x, word[1] = v.y;
    } else if constexpr (BYTES == 4) {
        word[0] = __ldg(static_cast<const u32*>(at));
    } else if constexpr (BYTES == 2) {
        word[0] = __ldg(static_cast<const unsigned short*>(at));
    } else {
        word[0] = __ldg(static_cast<const unsigned char*>(at));
    }
}

template <int KIND>
struct Bytes {
    static constexpr int value = KIND == FLOAT ? 4 : KIND == HALF ? 2 : 1;
};

// COUNT channels as they lie in memory: loaded first and read later, so that many are on their way.
template <int KIND, int COUNT>
struct Features {
    static constexpr int BYTES = COUNT * Bytes<KIND>::value, EVEN = BYTES & -BYTES;
    static constexpr int STEP = EVEN < 16 ? EVEN : 16;  // bytes of a load
    static constexpr int EACH = STEP / Bytes<KIND>::value, STEP_WORDS = STEP < 4 ? 1 : STEP / 4;
    u32 word[BYTES / STEP][STEP_WORDS];

    __device__ __forceinline__ void load(const void* features, u64 at) {
        const char* from = static_cast<const char*>(features) + at * Bytes<KIND>::value;
#pragma unroll
        for (int part = 0; part < BYTES / STEP; ++part) load_words<STEP>(word[part], from + part * STEP);
    }
    __device__ __forceinline__ void read(float (&v)[COUNT]) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const u32(&w)[STEP_WORDS] = word[i / EACH];
            const int at = i % EACH;
            if constexpr (KIND == FLOAT) {
                v[i] = __uint_as_float(w[at]);
            } else {
                const u32 pair = KIND == HALF      ? w[at / 2]
                                 : at % 4 < 2      ? halves_from_e4m3<false>(w[at / 4])
                                                   : halves_from_e4m3<true>(w[at / 4]);
                const float2 two = unpack_half2(pair);
                v[i] = at % 2 ? two.y : two.x;
            }
        }
    }
};

template <int KIND>
__device__ __forceinline__ float load_depth(const void* depth, long long at) {
    if constexpr (KIND == FLOAT) return __ldg(static_cast<const float*>(depth) + at);
    return unpack_half2(__ldg(static_cast<const unsigned short*>(depth) + at)).x;
}

// (largest, 1 / sum) of a pixel; nothing where depths are weights. The kernel before may still write
// them while this one's blocks start, which the cache for constant data (__ldg) does not allow.
__device__ __forceinline__ float2 load_norm(const float* norms, u64 pixel) {
#if LOGITS
    return reinterpret_cast<const float2*>(norms)[pixel];
#else
    return make_float2(0.f, 1.f);
#endif
}

// The weight of a point whose depth was loaded.
__device__ __forceinline__ float point_weight(float depth, float2 norm) {
#if LOGITS
    return expf(depth - norm.x) * norm.y;
#else
    return depth;
#endif
}

// COUNT neighbouring results; the row of `at` is aligned to what a row of ROW channels allows.
template <int KIND, int ROW, int COUNT>
__device__ __forceinline__ void store_results(void* out, u64 at, const float* v) {
    if constexpr (KIND == FLOAT) {
        float* to = static_cast<float*>(out) + at;
        if constexpr (ROW % 4 == 0 && COUNT % 4 == 0) {
#pragma unroll
            for (int i = 0; i < COUNT; i += 4)
                *reinterpret_cast<float4*>(to + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
        } else {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) to[i] = v[i];
        }
    } else {
        unsigned short* to = static_cast<unsigned short*>(out) + at;
        if constexpr (ROW % 8 == 0 && COUNT % 8 == 0) {
#pragma unroll
            for (int i = 0; i < COUNT; i += 8)
                *reinterpret_cast<uint4*>(to + i) =
                    make_uint4(pack_half2(v[i], v[i + 1]), pack_half2(v[i + 2], v[i + 3]),
                               pack_half2(v[i + 4], v[i + 5]), pack_half2(v[i + 6], v[i + 7]));
        } else if constexpr (ROW % 4 == 0 && COUNT % 4 == 0) {
#pragma unroll
            for (int i = 0; i < COUNT; i += 4)
                *reinterpret_cast<uint2*>(to + i) =
                    make_uint2(pack_half2(v[i], v[i + 1]), pack_half2(v[i + 2], v[i + 3]));
        } else if constexpr (ROW % 2 == 0 && COUNT % 2 == 0) {
#pragma unroll
            for (int i = 0; i < COUNT; i += 2) *reinterpret_cast<u32*>(to + i) = pack_half2(v[i], v[i + 1]);
        } else {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) to[i] = static_cast<unsigned short>(pack_half2(v[i], 0.f));
        }
    }
}
