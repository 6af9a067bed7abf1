// Pools camera features into a bird's-eye view, one interval of points after the other:
//   out[cell] = scale * sum over the points of the cell of depth[point] * features[pixel of point].
//
// depth     (B, N, D, H, W), contiguous from N on; a point is an index into (N, D, H, W); logits where
//           LOGITS is 1 (pool.cuh)
// features  (B, N H W, feature_row), the first C of every row are read
// out       (B, cells, C); only cells that have points are written, so the others must hold zeros
//
// Kernels, in the order in which they were thought of:
//   pool_v2        one thread an interval and channel; indices and depth read C times a point.
//   pool_v2_depth  one thread an interval and pack of channels, sums in halves, points outside;
//                  pixel from the point by division.
//   pool_v3        one group of lanes an interval, vectors of channels, five arrays, four points in
//                  flight, one write. The three above are the baselines of the benchmark.
//   pool_balanced  as pool_v3, but an interval longer than a chunk is cut into 2, 4, 8 ... parts that
//                  neighbouring groups of a block sum at the same time; the first adds the parts up,
//                  in order. Parts are sorted by length, so that the lanes of a warp finish together
//                  and the longest start first.
//
// Estimate (wide chip, everything in L2): a point is a chain index -> row of features of about
// 0.6 us, and a thread keeps UNROLL of them in flight, so 336 points of one interval take
// 336 / 4 * 0.6 / 2 = 25 us in pool_v3 whatever the rest does; cut at 32 points, 2 to 3 us. All rows
// together are points * C * 2 bytes through L2: 33.5 MB at 6 TB/s is 5.6 us, the floor of this file.
// pool_tiles (bev_pool_tiles.cu) reads a row once for many points and goes below it.
//
// Repeatable: the order of every addition is fixed by the map. NaN and infinity of a depth or feature
// reach the cells of their points and no others; 0 * infinity is NaN, as in torch.
//
// CHANNELS C, VEC of them a lane, LANES lanes an interval, SLOTS parts a block; FEATURES, DEPTHS, RESULTS:
// pool.cuh; HALF_SUM 1 sums halves (a chunk at a time) where FEATURES are not floats.
#include "pool.cuh"

#ifndef HALF_SUM
#define HALF_SUM 0
#endif
#ifndef UNROLL
#define UNROLL 4
#endif

struct Pool {
    const void *depth, *features;
    void* out;
    const int *ranks_depth, *ranks_feat, *ranks_bev, *starts, *lengths;
    const int* slots;  // (slots, 4): first point, points, cell or -1, part | parts of the interval << 16
    int intervals, cells, feature_row, points_per_pixel, pixels;  // the last two: D and H W
    u64 depth_batch, feature_batch;                               // elements between batch items
    const float* norms;                                           // (B, norm_batch, 2), or null
    u64 norm_batch;                                               // pixels of a batch item
    float scale;
};

extern "C" __global__ void __launch_bounds__(256) pool_v2(const Pool p) {
    begin_dependent();
    const int index = blockIdx.x * 256 + threadIdx.x, interval = index / CHANNELS, c = index % CHANNELS;
    if (interval >= p.intervals) return;
    const int start = p.starts[interval], length = p.lengths[interval];
    const u64 depth = blockIdx.y * p.depth_batch, row = blockIdx.y * p.feature_batch;
    float sum = 0.f;
    for (int i = start; i < start + length; ++i) {
        Features<FEATURES, 1> features;
        features.load(p.features, row + static_cast<u64>(p.ranks_feat[i]) * p.feature_row + c);
        float v[1];
        features.read(v);
        const float2 norm = load_norm(p.norms, blockIdx.y * p.norm_batch + p.ranks_feat[i]);
        sum = fmaf(point_weight(load_depth<DEPTHS>(p.depth, depth + p.ranks_depth[i]), norm), v[0], sum);
    }
    sum *= p.scale;
    const u64 cell = static_cast<u64>(blockIdx.y) * p.cells + p.ranks_bev[start];
    store_results<RESULTS, 1, 1>(p.out, cell * CHANNELS + c, &sum);
}

// VEC channels of a row, times the depth, onto a sum; in halves where HALF_SUM asks for it.
struct Sum {
    float v[VEC];
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < VEC; ++i) v[i] = 0.f;
    }
};
struct HalfSum {
    u32 v[(VEC + 1) / 2];
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < (VEC + 1) / 2; ++i) v[i] = 0;
    }
};

struct Point {
    float depth;
    float2 norm;
    Features<FEATURES, VEC> features;

    // A point, its pixel, and where the first of both lie.
    __device__ __forceinline__ void load(const Pool& p, int rank, int pixel, u64 depth_at, u64 row) {
        features.load(p.features, row + static_cast<u64>(pixel) * p.feature_row);
        depth = load_depth<DEPTHS>(p.depth, depth_at + rank);
        norm = load_norm(p.norms, blockIdx.y * p.norm_batch + pixel);
    }
    __device__ __forceinline__ float weight() const { return point_weight(depth, norm); }
};

__device__ __forceinline__ void add_point(Sum& sum, const Point& point) {
    float v[VEC];
    point.features.read(v);
    const float weight = point.weight();
#pragma unroll
    for (int i = 0; i < VEC; ++i) sum.v[i] = fmaf(weight, v[i], sum.v[i]);
}
__device__ __forceinline__ void add_point(HalfSum& sum, const Point& point) {
    float v[VEC];
    point.features.read(v);
    const float weight = point.weight();
    const u32 weights = pack_half2(weight, weight);
#pragma unroll
    for (int i = 0; i < VEC; i += 2)  // from halves and back is exact; the compiler drops both
        sum.v[i / 2] = fma_half2(weights, pack_half2(v[i], i + 1 < VEC ? v[i + 1] : 0.f), sum.v[i / 2]);
}
__device__ __forceinline__ void widen(const Sum& sum, float (&v)[VEC]) {
#pragma unroll
    for (int i = 0; i < VEC; ++i) v[i] = sum.v[i];
}
__device__ __forceinline__ void widen(const HalfSum& sum, float (&v)[VEC]) {
#pragma unroll
    for (int i = 0; i < VEC; ++i) v[i] = i % 2 ? unpack_half2(sum.v[i / 2]).y : unpack_half2(sum.v[i / 2]).x;
}

// The points [begin, begin + count) of the map, VEC channels from c, UNROLL of them in flight; the
// ranks of the next ones are asked for meanwhile.
template <typename Accumulator>
__device__ __forceinline__ void sum_points(const Pool& p, int begin, int count, int c, float (&v)[VEC]) {
    const u64 depth = blockIdx.y * p.depth_batch, row = blockIdx.y * p.feature_batch + c;
    Accumulator sum;
    sum.clear();
    int rank_depth[UNROLL], rank_feat[UNROLL];
    const auto ask = [&](int i) {
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) {
            const int point = begin + min(i + k, count - 1);  // the last one again, for nothing
            rank_depth[k] = __ldg(p.ranks_depth + point);
            rank_feat[k] = __ldg(p.ranks_feat + point);
        }
    };
    if (count > 0) ask(0);
    for (int i = 0; i < count; i += UNROLL) {
        Point point[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; ++k)
            point[k].load(p, rank_depth[k], rank_feat[k], depth, row);
        if (i + UNROLL < count) ask(i + UNROLL);
#pragma unroll
        for (int k = 0; k < UNROLL; ++k)
            if (i + k < count) add_point(sum, point[k]);
    }
    widen(sum, v);
}

__device__ __forceinline__ void store_cell(const Pool& p, int cell, int c, float (&v)[VEC]) {
#pragma unroll
    for (int i = 0; i < VEC; ++i) v[i] *= p.scale;
    const u64 at = (static_cast<u64>(blockIdx.y) * p.cells + cell) * CHANNELS + c;
    store_results<RESULTS, CHANNELS % VEC ? 1 : CHANNELS, VEC>(p.out, at, v);
}

extern "C" __global__ void __launch_bounds__(256) pool_v2_depth(const Pool p) {
    begin_dependent();
    constexpr int PACKS = CHANNELS / VEC;
    const int index = blockIdx.x * 256 + threadIdx.x, interval = index / PACKS, c = index % PACKS * VEC;
    if (interval >= p.intervals) return;
    const int start = p.starts[interval], end = start + p.lengths[interval];
    const u64 depth = blockIdx.y * p.depth_batch, row = blockIdx.y * p.feature_batch + c;
    HalfSum sum;
    sum.clear();
    for (int i = start; i < end; ++i) {
        const int rank = p.ranks_depth[i];
        const int camera = rank / (p.points_per_pixel * p.pixels), pixel = camera * p.pixels + rank % p.pixels;
        Point point;
        point.load(p, rank, pixel, depth, row);
        add_point(sum, point);
    }
    float v[VEC];
    widen(sum, v);
    store_cell(p, p.ranks_bev[start], c, v);
}

extern "C" __global__ void __launch_bounds__(256) pool_v3(const Pool p) {
    begin_dependent();
    constexpr int OWNERS = CHANNELS / VEC;
    const int index = blockIdx.x * 256 + threadIdx.x, interval = index / OWNERS, c = index % OWNERS * VEC;
    if (interval >= p.intervals) return;
    const int start = p.starts[interval], end = start + p.lengths[interval];
    const u64 depth = blockIdx.y * p.depth_batch, row = blockIdx.y * p.feature_batch + c;
    Sum sum;
    sum.clear();
#pragma unroll 4
    for (int i = start; i < end; ++i) {
        Point point;
        const int rank = __ldg(p.ranks_depth + i), pixel = __ldg(p.ranks_feat + i);
        point.load(p, rank, pixel, depth, row);
        add_point(sum, point);
    }
    float v[VEC];
    widen(sum, v);
    store_cell(p, p.ranks_bev[start], c, v);
}

extern "C" __global__ void __launch_bounds__(LANES * SLOTS) pool_balanced(const Pool p) {
    begin_dependent();
    __shared__ float shared_part[SLOTS * LANES * VEC];
    const int slot = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int4* slots = reinterpret_cast<const int4*>(p.slots) + static_cast<u64>(blockIdx.x) * SLOTS;
    const int4 mine = __ldg(slots + slot);
    const int part = mine.w & 0xffff, parts = mine.w >> 16;
    const bool cut = (__ldg(slots).w >> 16) > 1;  // the first interval of a block has the most parts
    for (int c = lane * VEC; c - lane * VEC < CHANNELS; c += LANES * VEC) {
        float v[VEC] = {};
        if (c < CHANNELS) {
#if HALF_SUM
            sum_points<HalfSum>(p, mine.x, mine.y, c, v);
#else
            sum_points<Sum>(p, mine.x, mine.y, c, v);
#endif
        }
        if (cut) {
            float* own = shared_part + threadIdx.x * VEC;
#pragma unroll
            for (int i = 0; i < VEC; ++i) own[i] = v[i];
            __syncthreads();
            if (part == 0)
                for (int q = 1; q < parts; ++q)
#pragma unroll
                    for (int i = 0; i < VEC; ++i) v[i] += own[q * LANES * VEC + i];
            __syncthreads();  // before the next channels overwrite the parts
        }
        if (c < CHANNELS && part == 0 && mine.z >= 0) store_cell(p, mine.z, c, v);
    }
}
