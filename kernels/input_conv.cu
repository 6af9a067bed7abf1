// The first layer: submanifold 3 x 3 x 3, IN point features -> OUT channels, bias and ReLU.
//
// With five input channels a tap is too short for a tiled product: each thread owns a row, finds its
// neighbours in the leaf map itself and keeps all OUT sums in registers. Rows of a warp are
// neighbours in space, so their look-ups and inputs share cache lines. Weights sit in shared memory,
// where all lanes read the same address.
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
    __shared__ float4 weight[27 * IN * OUT / 4];
    const Level& level = levels[c.level];
    const int rows = rows_of(level);
    if (blockIdx.x * kThreads >= rows) return;
    for (int i = threadIdx.x; i < 27 * IN * OUT / 4; i += kThreads) weight[i] = reinterpret_cast<const float4*>(c.weight)[i];
    __syncthreads();
    for (int row = blockIdx.x * kThreads + threadIdx.x; row < rows; row += gridDim.x * kThreads) {
        const int* at = level.coords + row * 3LL;
        const int z = at[0], y = at[1], x = at[2];
        float4 acc[OUT / 4];
#pragma unroll
        for (int j = 0; j < OUT / 4; ++j) acc[j] = make_float4(0.f, 0.f, 0.f, 0.f);
        for (int kz = 0; kz < 3; ++kz) {
            Window window;
            window.load(level, z + kz - 1, y - 1, x - 1, 3, 3);
            u32 bits = window.triple(0) | window.triple(1) << 3 | window.triple(2) << 6;
            for (; bits; bits &= bits - 1) {
                const int tap = __ffs(bits) - 1, source = window.row(tap / 3, tap % 3);
                if (source >= level.row_capacity) continue;
                const float* in = c.x + static_cast<long long>(source) * IN;
                const float4* w = weight + (kz * 9 + tap) * (IN * OUT / 4);
#pragma unroll
                for (int i = 0; i < IN; ++i)
#pragma unroll
                    for (int j = 0; j < OUT / 4; ++j) acc[j] = fma4(in[i], w[i * (OUT / 4) + j], acc[j]);
            }
        }
#pragma unroll
        for (int j = 0; j < OUT / 4; ++j)
            store_features(c.out, row * (OUT / 4ll) + j, relu4(add(acc[j], reinterpret_cast<const float4*>(c.bias)[j])));
    }
}
