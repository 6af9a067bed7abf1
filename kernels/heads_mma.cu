// Branches of the detection heads (branches.cuh) with the hidden layer on the tensor cores, from
// float32 rows in the precisions TF32 and F16X3 (mma.cuh).
//
// A block runs one branch alone, so it keeps all hidden weights in shared memory and walks tiles of TM
// rows. Each lane loads its part of a row, 16 consecutive bytes, straight from global memory, one block
// ahead of the products; the WARPS_N warps that share rows find them in the first-level cache.
//
// Specialised as conv_mma.cuh says, CIN and COUT both the width, and by MIN_BLOCKS.
constexpr bool kStagedRows = false, kOwnTiles = false;
#include "branches.cuh"
#include "conv_mma.cuh"

static_assert(CIN == COUT && KC == CIN, "hidden layers keep the width; all of it is one stage");
static_assert(PRECISION == TF32 || PRECISION == F16X3, "rows are floats in blocks of 64 bytes");

struct Part {
    static constexpr int kRows = 2 * kR, kChannels = 2 * kC, kFirstLane = 4, kLastLane = 32, kWarps = WARPS_N;
    int row0, channel0;

    __device__ __forceinline__ Part() {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        row0 = warp / WARPS_N * (kR * 8) + lane % 4 * 2;
        channel0 = warp % WARPS_N * (kC * 16) + kRun * (lane / 4);
    }
    __device__ __forceinline__ int row(int i) const { return row0 + i / 2 * 8 + i % 2; }
    __device__ __forceinline__ int channel(int c) const { return channel0 + c / kRun * (8 * kRun) + c % kRun; }
    __device__ __forceinline__ bool leads() const { return (threadIdx.x & 31) < 4; }
    __device__ __forceinline__ int warp() const { return (threadIdx.x >> 5) % WARPS_N; }
};

// The parts of eight rows each that a warp needs, block after block of the width.
struct Stream {
    const float* features;
    int source[kR];
    uint4 part[kR];
    int block;

    __device__ __forceinline__ Stream(const float* x, const HeadBranch& branch, int row0, int rows) : features(x), block(0) {
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int r = 0; r < kR; ++r) source[r] = source_of(branch, row0 + r * 8 + lane / 4, rows);
        fetch();
    }
    __device__ __forceinline__ void fetch() {
        if (block == kBlocks) return;
#pragma unroll
        for (int r = 0; r < kR; ++r) {
            part[r] = make_uint4(0u, 0u, 0u, 0u);
            const long long at = static_cast<long long>(source[r]) * (CIN * kElement) + block * kBlock + (threadIdx.x & 3) * 16;
            if (source[r] >= 0) part[r] = load_part(reinterpret_cast<const char*>(features) + at);
        }
        ++block;
    }
};

// sum += w[width][channels of the warp] * x[rows of the warp][width]
__device__ __forceinline__ void multiply(Sum (&sum)[kR][kC][4], Stream& x, const char* w) {
#pragma unroll 1  // more keep operands of several blocks in registers, which spills
    for (int block = 0; block < kBlocks; ++block, w += kBlockWeights) {
        Rows rows[kR];
#pragma unroll
        for (int r = 0; r < kR; ++r) rows[r] = rows_from<PRECISION>(x.part[r], 1.f);
        x.fetch();
#pragma unroll
        for (int c = 0; c < kC; ++c) {
            const Weights weights = load_weights(w + c * kOperand);
#pragma unroll
            for (int r = 0; r < kR; ++r) multiply_block<PRECISION, kProducts>(sum[r][c], weights, rows[r]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) run_branches(const float* features, const HeadBranch* branches) {
    begin_dependent();
    SHARED_DYNAMIC(float4, shared);
    char* weights = reinterpret_cast<char*>(shared);
    const HeadBranch& branch = branches[blockIdx.y];
    const Part at;
    const int rows = rows_of(branch), warp = threadIdx.x >> 5;
    if (blockIdx.x * TM >= rows) return;
    for (int e = threadIdx.x * 16; e < kStageB; e += kThreads * 16)
        copy16_async(weights + e, static_cast<const char*>(branch.hidden) + e, true);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    for (int row0 = blockIdx.x * TM; row0 < rows; row0 += gridDim.x * TM) {
        Stream x(features, branch, row0 + warp / WARPS_N * (kR * 8), rows);
        Sum sum[kR][kC][4] = {};
        multiply(sum, x, weights + warp % WARPS_N * (kC * kOperand));
        float hidden[Part::kRows][Part::kChannels];
#pragma unroll
        for (int c = 0; c < Part::kChannels; ++c) {
            const float bias = branch.hidden_bias[at.channel(c)];
            const int operand = c / kRun * (kRun / 2) + c % kRun / 2;
#pragma unroll
            for (int i = 0; i < Part::kRows; ++i)
                hidden[i][c] = relu(sum[i / 2][operand][c % 2 * 2 + i % 2] * branch.scale + bias);
        }
        second_layer(branch, at, hidden, row0, rows);
    }
}
