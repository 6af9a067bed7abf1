// The branches of the detection heads: two 1 x 1 layers each, the hidden one never stored.
//
//   out[row] = relu(x[source(row)] @ hidden + hidden_bias) @ weight + bias
//
// One launch runs many branches over the same features: the heat of every head at every row, or the
// regression branches of every head at its chosen rows. A block owns TM rows of one branch and all C
// hidden channels (ffma.cuh), summed over input channels in ascending order. The second layer has few
// outputs: each thread adds up its own channels, then lanes, then warps, in a fixed order, so the
// result of a row does not depend on the tile it fell into.
//
// How many rows there are is read on the device. Rows beyond are zeros in a tile and never written.
//
// Specialised by CIN and COUT (both the width), TM, KC, RPT, CPT, STAGES and MIN_BLOCKS.
#include "ffma.cuh"

constexpr int kStageA = TM * kRowStride, kStageB = KC * COUT;
constexpr int kCopiesA = TM * KC / 4 / kThreads, kCopiesB = KC * COUT / 4 / kThreads;
constexpr int kSlabs = CIN / KC;
static_assert(CIN == COUT, "hidden layers keep the width");
static_assert(CIN % KC == 0, "whole slabs");
static_assert(TM * KC / 4 % kThreads == 0 && KC * COUT / 4 % kThreads == 0, "copies are equal");

struct HeadBranch {
    const float* hidden;       // (CIN, COUT)
    const float* hidden_bias;  // (COUT)
    const float* weight;       // (COUT, outputs)
    const float* bias;         // (outputs)
    const int* source;         // (rows) row of the features of each row; null where it is the same
    const int* count;          // rows
    float* out;                // (capacity, stride), at the first output of the branch
    int capacity, outputs, stride;
};

// Copies slab after slab of a tile of rows and of the hidden weights into the ring of stages.
struct RowLoader {
    const float* x;
    const float* weight;
    float *a, *b;
    int slab, source[kCopiesA];

    __device__ RowLoader(const float* features, const HeadBranch& branch, float* smem, int row0, int rows)
        : x(features), weight(branch.hidden), a(smem), b(smem + STAGES * kStageA), slab(0) {
#pragma unroll
        for (int i = 0; i < kCopiesA; ++i) {
            const int row = row0 + (threadIdx.x + i * kThreads) / (KC / 4);
            source[i] = row >= rows ? -1 : branch.source ? branch.source[row] : row;
        }
    }

    __device__ __forceinline__ void load(int stage) {
        constexpr int columns = KC / 4;
#pragma unroll
        for (int i = 0; i < kCopiesA; ++i) {
            const int e = threadIdx.x + i * kThreads, row = e / columns, column = e % columns * 4;
            const bool present = source[i] >= 0;
            const long long from = static_cast<long long>(present ? source[i] : 0) * CIN;
            copy16_async(a + stage * kStageA + row * kRowStride + column, x + from + slab * KC + column, present);
        }
#pragma unroll
        for (int i = 0; i < kCopiesB; ++i) {
            const int e = (threadIdx.x + i * kThreads) * 4;
            copy16_async(b + stage * kStageB + e, weight + slab * kStageB + e, true);
        }
        ++slab;
    }
};

__device__ __forceinline__ void hidden_layer(float (&acc)[RPT][CPT], RowLoader& loader, const HeadBranch& branch, const Corner& corner) {
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < kSlabs) loader.load(s);
        copy_commit();
    }
    for (int step = 0; step < kSlabs; ++step) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < kSlabs) loader.load((step + STAGES - 1) % STAGES);
        copy_commit();
        const int stage = step % STAGES;
        multiply(acc, loader.a + stage * kStageA + corner.row0 * kRowStride, loader.b + stage * kStageB + corner.channel0);
    }
    copy_wait<0>();
#pragma unroll
    for (int c = 0; c < CPT; ++c) {
        const float bias = branch.hidden_bias[corner.channel0 + c / 4 * (kLanesC * 4) + c % 4];
#pragma unroll
        for (int i = 0; i < RPT; ++i) acc[i][c] = relu(acc[i][c] + bias);
    }
}

// One branch a row of the grid; blocks of a row share its tiles.
extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) run_branches(const float* features, const HeadBranch* branches) {
    begin_dependent();
    SHARED_DYNAMIC(float, smem);
    // Two, since outputs take turns: one may be written while the other is read.
    __shared__ float part[2][kWarpsC][TM];
    const HeadBranch branch = branches[blockIdx.y];
    const Corner corner;
    const int warp_c = (threadIdx.x >> 5) % kWarpsC, rows = min(*branch.count, branch.capacity);
    for (int row0 = blockIdx.x * TM; row0 < rows; row0 += gridDim.x * TM) {
        RowLoader loader(features, branch, smem, row0, rows);
        float hidden[RPT][CPT] = {};
        hidden_layer(hidden, loader, branch, corner);
        for (int o = 0; o < branch.outputs; ++o) {
            float sum[RPT] = {};
#pragma unroll
            for (int c = 0; c < CPT; ++c) {
                const int channel = corner.channel0 + c / 4 * (kLanesC * 4) + c % 4;
                const float w = branch.weight[channel * branch.outputs + o];
#pragma unroll
                for (int i = 0; i < RPT; ++i) sum[i] = fmaf(hidden[i][c], w, sum[i]);
            }
#pragma unroll
            for (int i = 0; i < RPT; ++i) {
#pragma unroll
                for (int d = 2; d < 2 * kLanesC; d *= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], d);
                if (corner.lane_c == 0) part[o & 1][warp_c][corner.row0 + i * kLanesR] = sum[i];
            }
            __syncthreads();
            for (int row = threadIdx.x; row < TM && row0 + row < rows; row += kThreads) {
                float all = branch.bias[o];
#pragma unroll
                for (int w = 0; w < kWarpsC; ++w) all += part[o & 1][w][row];
                branch.out[static_cast<long long>(row0 + row) * branch.stride + o] = all;
            }
        }
        __syncthreads();  // the next tile's copies stay behind this tile's reads
    }
}
