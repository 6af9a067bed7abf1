// Mean features of each voxel: the first max_points points in input order, summed in that order.
//
// A row has a list of the lowest indices among its points. A point enters by atomic minimum: it takes
// the first place that holds a later point, which moves on to the places behind. Whatever the order
// of arrival, the list ends up sorted and complete, so the sums are those of the reference, bit for
// bit, on every run. Lists are empty between frames: averaging empties what it has read.
#include "levels.cuh"

constexpr int kThreads = 256;
constexpr int kFeatures = 5;
constexpr int kAtOnce = 4;             // points of a row whose loads are in flight together
constexpr int kNone = 0x7fffffff;      // an empty place

// Enters each point in the list of its row. lists (row capacity, length).
extern "C" __global__ void __launch_bounds__(kThreads)
list_points(const __grid_constant__ Level level, const int2* point_cell, const int* n_points, int* lists, int length) {
    begin_dependent();
    const int n = *n_points;
    for (int i = blockIdx.x * kThreads + threadIdx.x; i < n; i += gridDim.x * kThreads) {
        const int2 cell = point_cell[i];
        const int leaf = cell.x >= 0 ? leaf_index(level, cell.x) : -1;
        if (leaf < 0) continue;
        const ulonglong2 word = level.leaf[leaf * kWordsPerLeaf + (cell.y >> 6)];
        const int row = static_cast<int>(word.y) + __popcll(word.x & ((1ull << (cell.y & 63)) - 1));
        if (row >= level.row_capacity) continue;
        // Places only ever change to earlier points, so one that holds an earlier point is passed by.
        int* list = lists + row * static_cast<long long>(length);
        int seen = __ldcg(list), point = __ldcg(list + length - 1) < i ? kNone : i;
        for (int k = 0; point != kNone && k < length; ++k) {
            if (k) seen = __ldcg(list + k);
            if (seen > point) point = max(point, atomicMin(list + k, point));
        }
    }
}

// Minus zero is what leaves every float as it is when it is added, minus zero included.
__device__ __forceinline__ void start_sum(float (&sum)[kFeatures]) {
#pragma unroll
    for (int f = 0; f < kFeatures; ++f) sum[f] = -0.f;
}

// features (rows, 5) and number of points (rows); one thread a row.
extern "C" __global__ void __launch_bounds__(kThreads)
mean_features(const __grid_constant__ Level level, const float* points, int point_stride, int* lists, int length,
              float* features, int* stored) {
    begin_dependent();
    const int rows = rows_of(level);
    for (int row = blockIdx.x * kThreads + threadIdx.x; row < rows; row += gridDim.x * kThreads) {
        int* list = lists + row * static_cast<long long>(length);
        float sum[kFeatures];
        start_sum(sum);
        int count = 0;
        for (bool more = true; more && count < length;) {
            int at[kAtOnce];
            float point[kAtOnce][kFeatures];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) at[i] = count + i < length ? list[count + i] : kNone;
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                start_sum(point[i]);
                if (at[i] == kNone) continue;
                const float* p = points + static_cast<long long>(at[i]) * point_stride;
#pragma unroll
                for (int f = 0; f < kFeatures; ++f) point[i][f] = p[f];
                list[count + i] = kNone;
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
                for (int f = 0; f < kFeatures; ++f) sum[f] = __fadd_rn(sum[f], point[i][f]);
            int found = 0;
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) found += at[i] != kNone;
            count += found;
            more = found == kAtOnce;
        }
        stored[row] = count;
        float* out = features + row * static_cast<long long>(kFeatures);
#pragma unroll
        for (int f = 0; f < kFeatures; ++f) out[f] = __fdiv_rn(sum[f], static_cast<float>(count));
    }
}
