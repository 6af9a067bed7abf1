// Finishes a convolution whose taps were summed in groups:
//
//   out[row] = relu( sum over groups g that hold a tap of the row of part[g][row] + bias + residual )
//
// Groups are added in ascending order, so the result does not depend on which finished first. Rows
// without any tap get the bias alone.
#include "levels.cuh"

struct Finish {
    const float4* part;      // (groups, row capacity, channels / 4)
    const u32* mask;         // (rows) taps of each row
    const float4* bias;      // (channels / 4) or null
    const float4* residual;  // (rows, channels / 4) or null
    float4* out;             // (rows, channels / 4)
    int level;               // whose rows these are
    int groups, group_taps, channels4, relu;
};

extern "C" __global__ void __launch_bounds__(256) finish_groups(const Level* levels, const __grid_constant__ Finish f) {
    const Level& level = levels[f.level];
    const long long count = static_cast<long long>(rows_of(level)) * f.channels4;
    const long long group_size = static_cast<long long>(level.row_capacity) * f.channels4;
    for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
        const u32 mask = f.mask[i / f.channels4];
        float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
        for (int g = 0; g < f.groups; ++g)
            if (mask >> (g * f.group_taps) & ((1u << f.group_taps) - 1)) sum = add(sum, f.part[g * group_size + i]);
        if (f.bias) sum = add(sum, f.bias[i % f.channels4]);
        if (f.residual) sum = add(sum, f.residual[i]);
        f.out[i] = f.relu ? relu4(sum) : sum;
    }
}
