// Tensor-core products: the raw instructions, and operand fragments that are plain 16-byte reads.
//
// The weights are the left operand (16 output channels by k) and the gathered rows are the right one
// (k by 8 rows), so a result holds channels by rows. A lane of a warp is 4 g + t, g = 0..7, t = 0..3.
// Which k and which channel a slot of a product stands for is free as long as both operands agree;
// it is chosen so that
//
//   rows     a lane takes 16 consecutive bytes, 16 t .. 16 t + 15 of a 64-byte block of row g, as the
//            row lies in memory, and they are the registers that two products want: no ldmatrix, no
//            moves, and a quad of lanes reads whole sectors of a row.
//   weights  are packed once, so that 32 lanes read 512 consecutive bytes, the four registers of a
//            left operand each (before F64 widens them).
//   results  of a pair of left operands (32 channels): lane (g, t) holds channels 4 g .. 4 g + 3 of
//            rows 2 t and 2 t + 1; of a single one (16 channels) channels 2 g and 2 g + 1.
//
// A 64-byte block is 32 halves (two products) or 16 floats (two tf32 products, or the three of
// F16X3). A row of only 16 halves has one 32-byte block, 8 bytes a lane and one product; so has F64,
// whose doubles would fill too many registers otherwise.
#pragma once
#include "common.cuh"

// ---- raw instructions -----------------------------------------------------------------------------

#ifndef DRIVERT_CPU_SHIM  // the CPU shim of the tests brings its own of these
// d += a b. Pairs of halves: a[0] = (row g, k 2t, 2t+1), a[1] = (g+8, same k), a[2] = (g, k 2t+8, 2t+9),
// a[3] = (g+8, same); b[0] = (k 2t, 2t+1, column g), b[1] = (k 2t+8, 2t+9, column g);
// d[0], d[1] = (row g, columns 2t, 2t+1), d[2], d[3] = row g+8.
__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
    for (int k = 0; k < 2; ++k)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
#endif
}

// d += a b. Floats rounded to tf32: a[0] = (row g, k t), a[1] = (g+8, t), a[2] = (g, t+4),
// a[3] = (g+8, t+4); b[0] = (k t, column g), b[1] = (k t+4, column g); d as above.
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap();  // this chip has no tf32
#endif
}

// d += a b. Doubles: a[i] = (row g + 8 (i % 2), k t + 4 (i / 2)), b[i] = (k t + 4 i, column g); d as
// above. One instruction since 9.0, where the four that 8.x has take twice its time.
__device__ __forceinline__ void mma_m16n8k8_f64(double (&d)[4], const double (&a)[4], const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#elif __CUDA_ARCH__ >= 800
#pragma unroll
    for (int i = 0; i < 4; ++i)
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};\n"
            : "+d"(d[i % 2 * 2]), "+d"(d[i % 2 * 2 + 1])
            : "d"(a[i]), "d"(b[i / 2]));
#else
    __trap();  // this chip has no float64 matrix unit
#endif
}

// Nearest tf32, ties away from zero; without it the unit cuts the low bits and doubles the error.
__device__ __forceinline__ u32 cvt_rna_tf32(float v) {
    u32 r = 0;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(r) : "f"(v));
#endif
    return r;
}

// Two halves, rounded to nearest even, in one word; `low` in the low bits.
__device__ __forceinline__ u32 pack_half2(float low, float high) {
    u32 r;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
#else
    asm("{\n.reg .f16 l, h;\ncvt.rn.f16.f32 l, %1;\ncvt.rn.f16.f32 h, %2;\nmov.b32 %0, {l, h};\n}\n"
        : "=r"(r)
        : "f"(low), "f"(high));
#endif
    return r;
}

// The inverse: exact.
__device__ __forceinline__ float2 unpack_half2(u32 pair) {
    float2 v;
    asm("{\n.reg .f16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}\n"
        : "=f"(v.x), "=f"(v.y)
        : "r"(pair));
    return v;
}
#endif

// ---- operands by precision ---------------------------------------------------------------------

// F16    halves, products summed in fp32.
// TF32   floats rounded to 10 bits of mantissa, products summed in fp32.
// F16X3  floats split into a high and a low half; high * high + high * low + low * high summed in
//        fp32: 2^-21 relative, where bf16 halves would give 2^-16 and three tf32 products take twice
//        the time. Values are scaled by powers of two first, so that the low half stays above the
//        smallest half; what exceeds 65504 then becomes NaN, never a wrong number.
// F64    floats, turned into doubles in registers: products and sums in float64, rounded once at the
//        end. The unit has full rate on 8.0, 9.0 and 10.0 only.
enum Precision { F16, TF32, F16X3, F64 };

// Of a block: 8 gathered rows and 16 channels of the weights, as operands of two products, as their
// high and low halves, or as the doubles of one product.
template <int FORMAT>
struct Operands {
    using Sum = float;
    struct Rows {
        u32 part[2][2];
    };
    struct Weights {
        u32 part[2][4];
    };
};
template <>
struct Operands<F64> {
    using Sum = double;
    struct Rows {
        double part[2];
    };
    struct Weights {
        double part[4];
    };
};

__device__ __forceinline__ float word(const uint4& v, int i) {
    return __uint_as_float(i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w);
}

template <int FORMAT>
__device__ __forceinline__ typename Operands<FORMAT>::Rows rows_from(const uint4& v, float scale) {
    typename Operands<FORMAT>::Rows rows;
    if constexpr (FORMAT == F16) {
        rows = {{{v.x, v.y}, {v.z, v.w}}};
    } else if constexpr (FORMAT == F64) {
#pragma unroll
        for (int i = 0; i < 2; ++i) rows.part[i] = word(v, i);
    } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if constexpr (FORMAT == TF32) {
                rows.part[i][0] = cvt_rna_tf32(word(v, 2 * i)), rows.part[i][1] = cvt_rna_tf32(word(v, 2 * i + 1));
            } else {
                const float a = word(v, 2 * i) * scale, b = word(v, 2 * i + 1) * scale;
                rows.part[0][i] = pack_half2(a, b);
                const float2 high = unpack_half2(rows.part[0][i]);
                rows.part[1][i] = pack_half2(a - high.x, b - high.y);
            }
        }
    }
    return rows;
}

// From the 16 bytes that a lane reads for each of two products.
template <int FORMAT>
__device__ __forceinline__ typename Operands<FORMAT>::Weights weights_from(const uint4& v0, const uint4& v1) {
    typename Operands<FORMAT>::Weights weights;
    if constexpr (FORMAT == F64) {
#pragma unroll
        for (int i = 0; i < 4; ++i) weights.part[i] = word(v0, i);
    } else {
        weights = {{{v0.x, v0.y, v0.z, v0.w}, {v1.x, v1.y, v1.z, v1.w}}};
    }
    return weights;
}

// sum += weights * rows over a block; PRODUCTS is 1 where it has 32 bytes.
template <int FORMAT, int PRODUCTS>
__device__ __forceinline__ void multiply_block(typename Operands<FORMAT>::Sum (&sum)[4],
                                               const typename Operands<FORMAT>::Weights& w,
                                               const typename Operands<FORMAT>::Rows& x) {
    if constexpr (FORMAT == F64) {
        mma_m16n8k8_f64(sum, w.part, x.part);
    } else if constexpr (FORMAT == F16) {
#pragma unroll
        for (int i = 0; i < PRODUCTS; ++i) mma_m16n8k16_f16(sum, w.part[i], x.part[i]);
    } else if constexpr (FORMAT == TF32) {
#pragma unroll
        for (int i = 0; i < PRODUCTS; ++i) mma_m16n8k8_tf32(sum, w.part[i], x.part[i]);
    } else {
        float block[4] = {};  // the unit cuts off low bits at every sum; ordinary additions round
        mma_m16n8k16_f16(block, w.part[0], x.part[1]);
        mma_m16n8k16_f16(block, w.part[1], x.part[0]);
        mma_m16n8k16_f16(block, w.part[0], x.part[0]);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] += block[i];
    }
}
