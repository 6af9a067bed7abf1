// The first layer: submanifold 3 x 3 x 3, IN point features -> OUT channels, bias and ReLU.
//
// With five input channels a tap is too short for a tiled product: each thread owns a row, finds its
// neighbours in the leaf map itself and keeps all OUT sums in registers. Rows of a warp are
// neighbours in space, so their look-ups and inputs share cache lines. A warp walks the taps that any
// of its rows has, all lanes at the same one, so that a weight in shared memory is read once for all.
//
// Specialised by IN, OUT and HALF: the result is halves; products and sums are floats either way.
// Taps are added in ascending order.
#include "features.cuh"
#include "levels.cuh"

constexpr int kThreads = 128;
static_assert(OUT % 4 == 0, "channels are written four at a time");

struct InputConv {
    const float* x;        // (rows, IN)
    const float* weight;   // (27, IN, OUT)
    const float* bias;     // (OUT)
    void* out;             // (rows, OUT)
    int level;
};

extern "C" __global__ void __launch_bounds__(kThreads) input_conv(const Level* levels, const __grid_constant__ InputConv c) {
    begin_dependent();
    __shared__ float4 weight[27 * IN * OUT / 4];
    const Level level = levels[c.level];
    const int rows = rows_of(level);
    if (blockIdx.x * kThreads >= rows) return;
    for (int i = threadIdx.x; i < 27 * IN * OUT / 4; i += kThreads) weight[i] = reinterpret_cast<const float4*>(c.weight)[i];
    __syncthreads();
    for (int first = blockIdx.x * kThreads; first < rows; first += gridDim.x * kThreads) {
        const int row = first + threadIdx.x;
        const int* at = level.coords + min(row, rows - 1) * 3LL;
        const int z = at[0], y = at[1], x = at[2];
        float4 acc[OUT / 4];
#pragma unroll
        for (int j = 0; j < OUT / 4; ++j) acc[j] = make_float4(0.f, 0.f, 0.f, 0.f);
        for (int kz = 0; kz < 3; ++kz) {
            Window window;
            window.load(level, z + kz - 1, y - 1, x - 1, 3, 3);
            const u32 bits = row < rows ? window.bits() : 0u;
            u32 any = bits;  // of the warp
            for (int d = 16; d; d /= 2) any |= __shfl_xor_sync(0xffffffffu, any, d);
            for (; any; any &= any - 1) {
                const int tap = __ffs(any) - 1;
                if (!(bits >> tap & 1u)) continue;
                const int source = window.row(tap / 3, tap % 3);
                if (source >= level.row_capacity) continue;
                const float* in = c.x + static_cast<long long>(source) * IN;
                const float4* w = weight + (kz * 9 + tap) * (IN * OUT / 4);
                float value[IN];
#pragma unroll
                for (int i = 0; i < IN; ++i) value[i] = in[i];
#pragma unroll
                for (int i = 0; i < IN; ++i)
#pragma unroll
                    for (int j = 0; j < OUT / 4; ++j) acc[j] = fma4(value[i], w[i * (OUT / 4) + j], acc[j]);
            }
        }
        if (row >= rows) continue;
#pragma unroll
        for (int j = 0; j < OUT / 4; ++j)
            store_features(c.out, row * (OUT / 4ll) + j, relu4(add(acc[j], reinterpret_cast<const float4*>(c.bias)[j])));
    }
}
