// Mean features of each voxel: the first max_points points in input order, summed in that order.
//
// Points are grouped by row with integer counters (their order inside a group does not matter); then
// each row picks its lowest point indices and adds those points in ascending order, so the sums are
// those of the reference, bit for bit, on every run.
#include "levels.cuh"

constexpr int kThreads = 256;
constexpr int kFeatures = 5;
constexpr int kAhead = 4;            // loads in flight while a crowded voxel is searched
constexpr int kFewPoints = 4;      // rows with more are handled by a whole warp

// Row of each point and its place among the points of the row.
extern "C" __global__ void count_points(const Level* levels, const int2* point_cell, const int* n_points,
                                        int2* point_place, int* row_points) {
    const Level level = levels[0];
    const int n = *n_points;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int2 cell = point_cell[i];
        const int leaf = cell.x >= 0 ? leaf_index(level, cell.x) : -1;
        int2 place = make_int2(-1, 0);
        if (leaf >= 0) {
            const ulonglong2 word = level.leaf[leaf * kWordsPerLeaf + (cell.y >> 6)];
            const int row = static_cast<int>(word.y) + __popcll(word.x & ((1ull << (cell.y & 63)) - 1));
            if (row < level.row_capacity) place = make_int2(row, atomicAdd(row_points + row, 1));
        }
        point_place[i] = place;
    }
}

// First slot of each row.
extern "C" __global__ void __launch_bounds__(kThreads)
place_rows(const Level* levels, const int* row_points, int* row_begin, u64* status, int* ticket) {
    const Level level = levels[0];
    const int rows = rows_of(level);
    constexpr int per_thread = 4, per_chunk = kThreads * per_thread;
    const int chunks = (rows + per_chunk - 1) / per_chunk;
    for (int chunk; (chunk = take_chunk(ticket)) < chunks;) {
        const int first = chunk * per_chunk + threadIdx.x * per_thread;
        int counts[per_thread], mine = 0;
#pragma unroll
        for (int i = 0; i < per_thread; ++i) mine += counts[i] = first + i < rows ? row_points[first + i] : 0;
        int total, at = block_exclusive_sum<kThreads>(mine, &total);
        at += chunk_exclusive_sum<kThreads>(status, chunk, total);
#pragma unroll
        for (int i = 0; i < per_thread; at += counts[i++])
            if (first + i < rows) row_begin[first + i] = at;
    }
}

extern "C" __global__ void group_points(const int2* point_place, const int* n_points, const int* row_begin, int* grouped) {
    const int n = *n_points;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int2 place = point_place[i];
        if (place.x >= 0) grouped[row_begin[place.x] + place.y] = i;
    }
}

__device__ __forceinline__ void order(int& a, int& b) {
    const int low = min(a, b);
    b = max(a, b), a = low;
}

// Returns, to lane k < keep, the k-th lowest of n different indices.
__device__ __forceinline__ int lowest_sorted(const int* indices, int n, int keep, int lane) {
    constexpr int none = 0x7fffffff;
    int best = none, ahead[kAhead];
    for (int j = 0; j < n; j += 32) {
        if (j / 32 % kAhead == 0)
#pragma unroll
            for (int i = 0; i < kAhead; ++i) ahead[i] = j + i * 32 + lane < n ? indices[j + i * 32 + lane] : none;
        int candidate = none;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) candidate = j / 32 % kAhead == i ? ahead[i] : candidate;
        const int worst = __shfl_sync(0xffffffffu, best, keep - 1);
        if (!__any_sync(0xffffffffu, candidate < worst)) continue;
        // Merge by rank: the place of an index is the number of lower ones among both sets of 32.
        int rank_best = lane, rank_candidate = 0;  // `best` is sorted already
        for (int i = 0; i < 32; ++i) {
            const int other = __shfl_sync(0xffffffffu, candidate, i), old = __shfl_sync(0xffffffffu, best, i);
            rank_best += other < best;
            rank_candidate += (other < candidate || (other == candidate && i < lane)) + (old <= candidate);
        }
        int merged = none;
        for (int i = 0; i < 32; ++i) {
            const int from_old = __shfl_sync(0xffffffffu, rank_best, i), old = __shfl_sync(0xffffffffu, best, i);
            const int from_new = __shfl_sync(0xffffffffu, rank_candidate, i), fresh = __shfl_sync(0xffffffffu, candidate, i);
            if (from_old == lane) merged = old;
            if (from_new == lane) merged = fresh;
        }
        best = merged;
    }
    return best;
}

// Minus zero is what leaves every float as it is when it is added, minus zero included.
__device__ __forceinline__ void start_sum(float (&sum)[kFeatures]) {
#pragma unroll
    for (int f = 0; f < kFeatures; ++f) sum[f] = -0.f;
}

__device__ __forceinline__ void add_point(float (&sum)[kFeatures], const float* points, int stride, int index) {
    const float* p = points + static_cast<long long>(index) * stride;
#pragma unroll
    for (int f = 0; f < kFeatures; ++f) sum[f] = __fadd_rn(sum[f], p[f]);
}

__device__ __forceinline__ void write_mean(float* features, int row, const float (&sum)[kFeatures], int count) {
    float* out = features + row * static_cast<long long>(kFeatures);
#pragma unroll
    for (int f = 0; f < kFeatures; ++f) out[f] = __fdiv_rn(sum[f], static_cast<float>(count));
}

// features (rows, 5): one thread a row, the whole warp where a row holds many points.
extern "C" __global__ void __launch_bounds__(kThreads)
mean_features(const Level* levels, const float* points, int point_stride, const int* row_begin,
              const int* row_points, const int* grouped, int max_points, float* features, int* stored) {
    const Level level = levels[0];
    // The rows of a warp lie far apart: crowded voxels are neighbours, and one warp would get them all.
    const int rows = rows_of(level), lane = threadIdx.x & 31, warps = (rows + 31) / 32;
    for (int warp = (blockIdx.x * kThreads + threadIdx.x) / 32; warp < warps; warp += gridDim.x * kThreads / 32) {
        const int row = lane * warps + warp;
        const int count = row < rows ? row_points[row] : 0, begin = row < rows ? row_begin[row] : 0;
        const int keep = min(count, max_points);
        if (row < rows) stored[row] = keep;
        if (count > 0 && count <= kFewPoints) {
            int at[kFewPoints];
#pragma unroll
            for (int i = 0; i < kFewPoints; ++i) at[i] = i < count ? grouped[begin + i] : 0x7fffffff;
            order(at[0], at[1]), order(at[2], at[3]), order(at[0], at[2]), order(at[1], at[3]), order(at[1], at[2]);
            float sum[kFeatures];
            start_sum(sum);
#pragma unroll
            for (int i = 0; i < kFewPoints; ++i)
                if (i < keep) add_point(sum, points, point_stride, at[i]);
            write_mean(features, row, sum, keep);
        }
        for (u32 many = __ballot_sync(0xffffffffu, count > kFewPoints); many; many &= many - 1) {
            const int owner = __ffs(many) - 1;
            const int n = __shfl_sync(0xffffffffu, count, owner), from = __shfl_sync(0xffffffffu, begin, owner);
            const int take = min(n, max_points);
            const int mine = lowest_sorted(grouped + from, n, take, lane);
            float point[kFeatures], sum[kFeatures];
            start_sum(point), start_sum(sum);
            if (lane < take) add_point(point, points, point_stride, mine);
            for (int k = 0; k < take; ++k)
#pragma unroll
                for (int f = 0; f < kFeatures; ++f)
                    sum[f] = __fadd_rn(sum[f], __shfl_sync(0xffffffffu, point[f], k));
            if (lane == 0) write_mean(features, owner * warps + warp, sum, take);
        }
    }
}
