// Moves the points of past sweeps into the LiDAR frame of the current one.
//
// Points are x, y, z, intensity, time lag: columns that were kept in, rows out; sweeps.cuh says how a
// point is moved.
//
// Estimate: 40 bytes a point; nine sweeps of 34,000 points are 12 MB, 5 us on a wide chip, most of it
// to start and end. One block column a sweep, so that all of them are one launch.
#include "sweeps.cuh"

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
        move_point(sweep.columns + i, sweep.count, sweep.transform, sweep.age_s, sweep.moved + i * 5LL);
    }
}
