// Tensor-core instructions with the register layouts of PTX: element (row, column) of each operand
// lies where the hardware has it. Products of halves and of tf32 are exact and their sums rounded
// once; float64 is rounded at every sum.
#pragma once
#include "intrinsics.h"

namespace {
namespace shim {

inline float half_value(uint16_t bits) {
    _Float16 v;
    memcpy(&v, &bits, 2);
    return static_cast<float>(v);
}
inline uint16_t half_bits(float value) {
    const _Float16 v = static_cast<_Float16>(value);
    uint16_t bits;
    memcpy(&bits, &v, 2);
    return bits;
}

template <typename Sum, typename Part>
struct Fragments {
    Sum* acc;
    const Part *a, *b;
};
template <typename Sum, typename Part>
const Fragments<Sum, Part>& of(void* const* payload, int lane) {
    return *static_cast<Fragments<Sum, Part>*>(payload[lane]);
}
template <int K, typename Sum, typename Part, typename ElementA, typename ElementB>
void multiply(void* const* payload, ElementA element_a, ElementB element_b) {
    double a[16][K], b[K][8];
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < K; ++k) a[row][k] = element_a(payload, row, k);
    for (int k = 0; k < K; ++k)
        for (int column = 0; column < 8; ++column) b[k][column] = element_b(payload, k, column);
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + (i >= 2 ? 8 : 0), column = lane % 4 * 2 + (i & 1);
            Sum& acc = of<Sum, Part>(payload, lane).acc[i];
            double sum = acc;
            for (int k = 0; k < K; ++k) sum += a[row][k] * b[k][column];
            acc = static_cast<Sum>(sum);
        }
}
inline float half_of(uint32_t pair, int which) { return half_value(static_cast<uint16_t>(pair >> (16 * which))); }
inline float tf32_of(uint32_t bits) { return __uint_as_float(bits & 0xffffe000u); }

inline const Fragments<float, uint32_t>& words(void* const* payload, int lane) { return of<float, uint32_t>(payload, lane); }
inline void multiply_f16(void* const* payload, uint32_t) {
    multiply<16, float, uint32_t>(payload,
        [](void* const* p, int row, int k) { return half_of(words(p, row % 8 * 4 + k % 8 / 2).a[row / 8 + k / 8 * 2], k & 1); },
        [](void* const* p, int k, int column) { return half_of(words(p, column * 4 + k % 8 / 2).b[k / 8], k & 1); });
}
inline void multiply_tf32(void* const* payload, uint32_t) {
    multiply<8, float, uint32_t>(payload,
        [](void* const* p, int row, int k) { return tf32_of(words(p, row % 8 * 4 + k % 4).a[row / 8 + k / 4 * 2]); },
        [](void* const* p, int k, int column) { return tf32_of(words(p, column * 4 + k % 4).b[k / 4]); });
}
inline void multiply_f64(void* const* payload, uint32_t) {
    multiply<8, double, double>(payload,
        [](void* const* p, int row, int k) { return of<double, double>(p, row % 8 * 4 + k % 4).a[row / 8 + k / 4 * 2]; },
        [](void* const* p, int k, int column) { return of<double, double>(p, column * 4 + k % 4).b[k / 4]; });
}

}  // namespace shim

// acc (16 x 8 float) += a (16 x 16 half) * b (16 x 8 half)
inline void mma_m16n8k16_f16(float (&acc)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    shim::Fragments<float, uint32_t> mine = {acc, a, b};
    shim::meet({"mma_m16n8k16_f16", "", 0}, 0xffffffffu, shim::multiply_f16, &mine);
}
// acc (16 x 8 float) += a (16 x 8 tf32) * b (8 x 8 tf32)
inline void mma_m16n8k8_tf32(float (&acc)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    shim::Fragments<float, uint32_t> mine = {acc, a, b};
    shim::meet({"mma_m16n8k8_tf32", "", 0}, 0xffffffffu, shim::multiply_tf32, &mine);
}
// acc (16 x 8 double) += a (16 x 8 double) * b (8 x 8 double)
inline void mma_m16n8k8_f64(double (&acc)[4], const double (&a)[4], const double (&b)[2]) {
    shim::Fragments<double, double> mine = {acc, a, b};
    shim::meet({"mma_m16n8k8_f64", "", 0}, 0xffffffffu, shim::multiply_f64, &mine);
}
// Nearest tf32, ties away from zero, as cvt.rna.
inline unsigned cvt_rna_tf32(float v) {
    const unsigned bits = __float_as_uint(v);
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}
inline unsigned pack_half2(float low, float high) {
    return shim::half_bits(low) | static_cast<unsigned>(shim::half_bits(high)) << 16;
}
inline float2 unpack_half2(unsigned pair) { return {shim::half_of(pair, 0), shim::half_of(pair, 1)}; }

}  // namespace
