// The branches of the detection heads: two 1 x 1 layers each, the hidden one never stored.
//
//   out[row] = relu(x[source(row)] @ hidden + hidden_bias) @ weight + bias
//
// One launch runs many branches over the same features, one a row of the grid: the heat of every head
// at every row, or the regression branches of every head at its chosen rows. A block owns TM rows of
// one branch and all hidden channels; heads.cu multiplies them on the CUDA cores, heads_mma.cu on the
// tensor cores. The second layer is float32 in both and has few outputs: each thread adds up its own
// channels, then lanes, then warps, in a fixed order, so the result of a row does not depend on the
// tile it fell into.
//
// How many rows there are is read on the device. Rows beyond are zeros in a tile and never written.
#pragma once
#include "common.cuh"

struct HeadBranch {
    const void* hidden;        // (width, width), as the kernel wants it
    const float* hidden_bias;  // (width)
    const float* weight;       // (width, outputs)
    const float* bias;         // (outputs)
    const int* source;         // (rows) row of the features of each row; null where it is the same
    const int* count;          // rows
    float* out;                // (capacity, stride), at the first output of the branch
    int capacity, outputs, stride;
    float scale;               // of hidden sums: undoes what packing applied
};

__device__ __forceinline__ int rows_of(const HeadBranch& branch) { return min(*branch.count, branch.capacity); }

// Row of the features that a row of a branch reads, or -1 beyond the last.
__device__ __forceinline__ int source_of(const HeadBranch& branch, int row, int rows) {
    return row >= rows ? -1 : branch.source ? branch.source[row] : row;
}

// The second layer of a tile whose first row is row0. A Part says which rows and channels of it a
// thread holds: row(i) of the tile, channel(c), which lanes share its rows (those whose numbers differ
// in bits from kFirstLane below kLastLane), and which warp of kWarps along the channels this one is.
template <class Part>
__device__ __forceinline__ void second_layer(const HeadBranch& branch, const Part& at,
                                             const float (&hidden)[Part::kRows][Part::kChannels], int row0, int rows) {
    // Two, since outputs take turns: one may be written while the other is read.
    __shared__ float part[2][Part::kWarps][TM];
    for (int o = 0; o < branch.outputs; ++o) {
        float sum[Part::kRows] = {};
#pragma unroll
        for (int c = 0; c < Part::kChannels; ++c) {
            const float w = branch.weight[at.channel(c) * branch.outputs + o];
#pragma unroll
            for (int i = 0; i < Part::kRows; ++i) sum[i] = fmaf(hidden[i][c], w, sum[i]);
        }
#pragma unroll
        for (int i = 0; i < Part::kRows; ++i) {
#pragma unroll
            for (int d = Part::kFirstLane; d < Part::kLastLane; d *= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], d);
            if (at.leads()) part[o & 1][at.warp()][at.row(i)] = sum[i];
        }
        __syncthreads();
        for (int row = threadIdx.x; row < TM && row0 + row < rows; row += blockDim.x) {
            float all = branch.bias[o];
#pragma unroll
            for (int w = 0; w < Part::kWarps; ++w) all += part[o & 1][w][row];
            branch.out[static_cast<long long>(row0 + row) * branch.stride + o] = all;
        }
    }
    __syncthreads();  // the next tile writes what this one has read
}
