// Tensor-core instructions with the register layouts of PTX: element (row, column) of each operand
// lies where the hardware has it. Products are exact, sums are rounded once.
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

struct Fragments {
    float* acc;
    const uint32_t *a, *b;
};
template <int K, typename ElementA, typename ElementB>
void multiply(void* const* payload, ElementA element_a, ElementB element_b) {
    float a[16][K], b[K][8];
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < K; ++k) a[row][k] = element_a(payload, row, k);
    for (int k = 0; k < K; ++k)
        for (int column = 0; column < 8; ++column) b[k][column] = element_b(payload, k, column);
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + (i >= 2 ? 8 : 0), column = lane % 4 * 2 + (i & 1);
            float& acc = static_cast<Fragments*>(payload[lane])->acc[i];
            double sum = acc;
            for (int k = 0; k < K; ++k) sum += static_cast<double>(a[row][k]) * b[k][column];
            acc = static_cast<float>(sum);
        }
}
inline const Fragments& of(void* const* payload, int lane) { return *static_cast<Fragments*>(payload[lane]); }
inline float half_of(uint32_t pair, int which) { return half_value(static_cast<uint16_t>(pair >> (16 * which))); }
inline float tf32_of(uint32_t bits) { return __uint_as_float(bits & 0xffffe000u); }

inline void multiply_f16(void* const* payload, uint32_t) {
    multiply<16>(payload,
        [](void* const* p, int row, int k) { return half_of(of(p, row % 8 * 4 + k % 8 / 2).a[row / 8 + k / 8 * 2], k & 1); },
        [](void* const* p, int k, int column) { return half_of(of(p, column * 4 + k % 8 / 2).b[k / 8], k & 1); });
}
inline void multiply_tf32(void* const* payload, uint32_t) {
    multiply<8>(payload,
        [](void* const* p, int row, int k) { return tf32_of(of(p, row % 8 * 4 + k % 4).a[row / 8 + k / 4 * 2]); },
        [](void* const* p, int k, int column) { return tf32_of(of(p, column * 4 + k % 4).b[k / 4]); });
}

}  // namespace shim

// acc (16 x 8 float) += a (16 x 16 half) * b (16 x 8 half)
inline void mma_m16n8k16_f16(float (&acc)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    shim::Fragments mine = {acc, a, b};
    shim::meet({"mma_m16n8k16_f16", "", 0}, 0xffffffffu, shim::multiply_f16, &mine);
}
// acc (16 x 8 float) += a (16 x 8 tf32) * b (8 x 8 tf32)
inline void mma_m16n8k8_tf32(float (&acc)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    shim::Fragments mine = {acc, a, b};
    shim::meet({"mma_m16n8k8_tf32", "", 0}, 0xffffffffu, shim::multiply_tf32, &mine);
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
