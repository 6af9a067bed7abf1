// Features between layers, four channels at a time: floats, or halves where HALF.
//
// A value beyond 65504 becomes infinite as a half; NaN stays NaN.
#pragma once
#include "mma.cuh"

// `at` counts fours of channels.
__device__ __forceinline__ float4 load_features(const void* from, long long at) {
    if constexpr (HALF) {
        const uint2 raw = static_cast<const uint2*>(from)[at];
        const float2 a = unpack_half2(raw.x), b = unpack_half2(raw.y);
        return make_float4(a.x, a.y, b.x, b.y);
    } else {
        return static_cast<const float4*>(from)[at];
    }
}
__device__ __forceinline__ void store_features(void* to, long long at, float4 v) {
    if constexpr (HALF)
        static_cast<uint2*>(to)[at] = make_uint2(pack_half2(v.x, v.y), pack_half2(v.z, v.w));
    else
        static_cast<float4*>(to)[at] = v;
}
