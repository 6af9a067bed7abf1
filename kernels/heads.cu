// Branches of the detection heads (branches.cuh), exact FP32 on the CUDA cores: rows and hidden
// weights travel to shared memory KC input channels at a time, STAGES deep, and are summed over
// ascending channels (ffma.cuh).
//
// Specialised by CIN and COUT (both the width), TM, KC, RPT, CPT, STAGES and MIN_BLOCKS.
#include "branches.cuh"
#include "ffma.cuh"

static_assert(CIN == COUT, "hidden layers keep the width");

struct Part {
    static constexpr int kRows = RPT, kChannels = CPT, kFirstLane = 2, kLastLane = 2 * kLanesC, kWarps = kWarpsC;
    Corner corner;

    __device__ __forceinline__ int row(int i) const { return corner.row0 + i * kLanesR; }
    __device__ __forceinline__ int channel(int c) const { return corner.channel0 + c / 4 * (kLanesC * 4) + c % 4; }
    __device__ __forceinline__ bool leads() const { return corner.lane_c == 0; }
    __device__ __forceinline__ int warp() const { return (threadIdx.x >> 5) % kWarpsC; }
};

// Copies slab after slab of a tile of rows and of the hidden weights into the ring of stages.
struct Loader {
    const float* x;
    const float* weight;
    float *a, *b;
    int slab, source[kCopiesA];

    __device__ Loader(const float* features, const HeadBranch& branch, float* smem, int row0, int rows)
        : x(features), weight(static_cast<const float*>(branch.hidden)), a(smem), b(smem + STAGES * kStageA), slab(0) {
#pragma unroll
        for (int i = 0; i < kCopiesA; ++i)
            source[i] = source_of(branch, row0 + (threadIdx.x + i * kThreads) / (KC / 4), rows);
    }

    __device__ __forceinline__ void load(int stage) {
        copy_slab(*this, x, stage);
        ++slab;
    }
};

__device__ __forceinline__ void hidden_layer(float (&hidden)[RPT][CPT], Loader& loader, const HeadBranch& branch, const Part& at) {
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
        multiply(hidden, loader.a + stage * kStageA + at.corner.row0 * kRowStride,
                 loader.b + stage * kStageB + at.corner.channel0);
    }
    copy_wait<0>();
#pragma unroll
    for (int c = 0; c < CPT; ++c) {
        const float bias = branch.hidden_bias[at.channel(c)];
#pragma unroll
        for (int i = 0; i < RPT; ++i) hidden[i][c] = relu(hidden[i][c] + bias);
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) run_branches(const float* features, const HeadBranch* branches) {
    begin_dependent();
    SHARED_DYNAMIC(float, smem);
    const HeadBranch& branch = branches[blockIdx.y];
    const Part at;
    const int rows = rows_of(branch);
    for (int row0 = blockIdx.x * TM; row0 < rows; row0 += gridDim.x * TM) {
        Loader loader(features, branch, smem, row0, rows);
        float hidden[RPT][CPT] = {};
        hidden_layer(hidden, loader, branch, at);
        second_layer(branch, at, hidden, row0, rows);
    }
}
