// Finishes a convolution whose taps were summed in groups:
//
//   out[row] = relu( sum over groups g that hold a tap of the row of part[g][row] + bias + residual )
//
// Groups are added in ascending order, so the result does not depend on which finished first. Rows
// without any tap get the bias alone. A group that holds none is not read, for nothing was written
// there; adding zero in its place changes no bit, since a sum that began at +0 is never -0.
//
// Specialised by GROUPS, COUT and HALF: residual and result are halves.
#include "features.cuh"
#include "levels.cuh"

constexpr int kThreads = 256;
constexpr int kColumns = COUT / 4;
constexpr int kAtOnce = GROUPS > 3 ? 1 : 2;  // results of a thread: as many loads in flight
static_assert(COUT % 4 == 0, "channels are read four at a time");

struct Finish {
    const float4* part;      // (GROUPS, row capacity, COUT / 4)
    const u32* mask;         // (rows) taps of each row
    const float4* bias;      // (COUT / 4) or null
    const void* residual;    // (rows, COUT) or null
    void* out;               // (rows, COUT)
    int group_taps, relu;
};

extern "C" __global__ void __launch_bounds__(kThreads, 4) finish_groups(const __grid_constant__ Level level, const __grid_constant__ Finish f) {
    begin_dependent();
    const long long count = static_cast<long long>(rows_of(level)) * kColumns, stride = gridDim.x * kThreads;
    const long long group_size = static_cast<long long>(level.row_capacity) * kColumns;
    const u32 taps = (1u << f.group_taps) - 1;
    for (long long begin = blockIdx.x * kThreads + threadIdx.x; begin < count; begin += kAtOnce * stride) {
        // Everything that is read is in flight together.
        float4 part[kAtOnce][GROUPS], residual[kAtOnce];
#pragma unroll
        for (int a = 0; a < kAtOnce; ++a) {
            const long long i = begin + a * stride;
            const u32 mask = i < count ? f.mask[i / kColumns] : 0u;
            residual[a] = f.residual && i < count ? load_features(f.residual, i) : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                part[a][g] = make_float4(0.f, 0.f, 0.f, 0.f);
                if (mask >> (g * f.group_taps) & taps) part[a][g] = f.part[g * group_size + i];
            }
        }
#pragma unroll
        for (int a = 0; a < kAtOnce; ++a) {
            const long long i = begin + a * stride;
            if (i >= count) break;
            float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) sum = add(sum, part[a][g]);
            if (f.bias) sum = add(sum, f.bias[i % kColumns]);
            if (f.residual) sum = add(sum, residual[a]);
            store_features(f.out, i, f.relu ? relu4(sum) : sum);
        }
    }
}
