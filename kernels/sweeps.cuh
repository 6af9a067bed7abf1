// How a point of a past sweep comes into the LiDAR frame of the current one, once for all kernels that
// move sweeps: coordinates in float64, rounded once; per axis fma(m2, z, fma(m1, y, m0 x)) + m3, which
// is the order of the matrix product of a CPU with fused multiply-add. The intensity stays, and the age
// of the sweep is added to the time lag.
#pragma once
#include "common.cuh"

// from: x, y, z, intensity, time lag, `next` floats apart. transform: three rows of four.
__device__ __forceinline__ void move_point(const float* from, long long next, const double* transform,
                                           float age_s, float* to) {
    const double x = from[0], y = from[next], z = from[2 * next];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        const double* m = transform + 4 * axis;
        const double turned = __fma_rn(m[2], z, __fma_rn(m[1], y, __dmul_rn(m[0], x)));
        to[axis] = static_cast<float>(__dadd_rn(turned, m[3]));
    }
    to[3] = from[3 * next];
    to[4] = from[4 * next] + age_s;
}
