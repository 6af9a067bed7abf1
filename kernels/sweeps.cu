// Moves the points of past sweeps into the LiDAR frame of the current one.
//
// Points are x, y, z, intensity, time lag: columns that were kept in, rows out. Coordinates are moved in float64 and rounded once; per axis
// the order is fma(m2, z, fma(m1, y, m0 x)) + m3, which is that of the matrix product of a CPU with
// fused multiply-add. Intensities stay, and the age of the sweep is added to each time lag.
//
// Estimate: 40 bytes a point; nine sweeps of 34,000 points are 12 MB, 5 us on a wide chip, most of it
// to start and end. One block column a sweep, so that all of them are one launch.
#include "common.cuh"

#define THREADS 256

struct Sweep {
    const float* columns;  // (5, count) in the LiDAR frame of the sweep
    float* moved;          // (count, 5) in that of the current one
    int count;
    float age_s;           // from the stamp of the sweep to the current one
    double transform[12];  // three rows of four: rotation, translation
};

// What one launch moves, as one argument.
struct Sweeps {
    Sweep at[16];
};

extern "C" __global__ void __launch_bounds__(THREADS) move_sweeps(const __grid_constant__ Sweeps sweeps) {
    begin_dependent();
    const Sweep& sweep = sweeps.at[blockIdx.y];
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < sweep.count; i += gridDim.x * THREADS) {
        const float* from = sweep.columns + i;
        const long long next = sweep.count;
        float* to = sweep.moved + i * 5LL;
        const double x = from[0], y = from[next], z = from[2 * next];
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            const double* m = sweep.transform + 4 * axis;
            const double turned = __fma_rn(m[2], z, __fma_rn(m[1], y, __dmul_rn(m[0], x)));
            to[axis] = static_cast<float>(__dadd_rn(turned, m[3]));
        }
        to[3] = from[3 * next];
        to[4] = from[4 * next] + sweep.age_s;
    }
}
