// Masked implicit GEMM on the tensor cores with even shares of the work: the tables of one group of
// taps, and the precisions, of sparse_conv_mma.cu.
//
// A layer has a few hundred tiles of 128 rows and some 300 blocks. Whole tiles would leave many of
// these idle, and taps in groups write fp32 sums, several times the features, that another kernel
// reads again. Here the taps of all tiles, one after the other, are divided into equal runs, one a
// block. A tile that lies in one run is finished at once. Of one that several runs cover, each block
// leaves its sums; the block that comes last adds them up in the order of the taps and finishes the
// tile. So at most two sums a block are ever written, nobody waits, and no second pass is needed.
//
// Where the runs end follows from the tables and from the number of shares alone: same tables, same
// number, same bytes.
//
// Specialised as conv_mma.cuh says (PARTIAL 0, whole COLUMNS), and by MIN_BLOCKS.
constexpr bool kStagedRows = true, kOwnTiles = false;
#include "conv_mma.cuh"

static_assert(!PARTIAL && kParts == 1, "tiles are finished here, and whole");

struct Shares {
    float4* part;  // (2 count, TM, COUT) sums: of the tile that a share finds begun, of that which it leaves open
    int* arrived;  // (count) blocks done with the tile that the share leaves open; zero between launches
    int count;
};
constexpr int kPart = TM * COUT * static_cast<int>(sizeof(Sum)) / 16;  // of one tile, in float4

// What a tile costs; one without taps takes an empty turn.
__device__ __forceinline__ int cost_of(u32 mask) { return max(__popc(mask), 1); }

// The costs of all tiles, one after the other, in equal runs.
struct Division {
    int total, count;  // not more runs than there is to do

    __device__ __forceinline__ int begin(int share) const { return static_cast<int>(static_cast<u64>(share) * total / count); }
    __device__ __forceinline__ int share_of(int place) const {
        return static_cast<int>((static_cast<u64>(place + 1) * count - 1) / total);
    }
};

// Goes through one share, tile by tile; the first and the last may be taken in part.
struct Walk {
    const Convolution& c;
    int at, end;       // places among all costs
    int tile, skip;    // next tile, and what of it lies before `at`
    u32 mask;          // all taps of the next tile
    int begin = 0, cost = 0, left_out = 0;  // of the tile taken last: its place, and what lies before the share
    bool whole = false;

    __device__ __forceinline__ Walk(const Convolution& conv, int from, int to, int first, int skipped)
        : c(conv), at(from), end(to), tile(first), skip(skipped), mask(c.tile_mask[first]) {}

    __device__ __forceinline__ void settle() {}
    __device__ __forceinline__ int skipped() const { return left_out; }
    __device__ __forceinline__ Tile take() {
        if (at >= end) return {-1, 0};
        cost = cost_of(mask), begin = at - skip, left_out = skip;
        const int taken = min(cost - skip, end - at);
        whole = taken == cost;
        u32 mine = mask;
        for (int i = 0; i < skip; ++i) mine &= mine - 1;
        if (skip + taken < cost) {
            u32 later = mine;
            for (int i = 0; i < taken; ++i) later &= later - 1;
            mine ^= later;
        }
        const Tile piece = {tile, mine};
        at += taken, skip = 0, ++tile;
        if (at < end) mask = c.tile_mask[tile];
        return piece;
    }
};

// ---- tiles of several blocks ---------------------------------------------------------------------

// Each thread finds the sums where it left them, whichever block it belongs to.
template <class Do>
__device__ __forceinline__ void each_word(float4* part, Sum (&sum)[kR][kC][4], Do action) {
    constexpr int words = sizeof(Sum) / 4;
#pragma unroll
    for (int r = 0; r < kR; ++r)
#pragma unroll
        for (int c = 0; c < kC; ++c)
#pragma unroll
            for (int i = 0; i < words; ++i) action(part + ((r * kC + c) * words + i) * kThreads + threadIdx.x, &sum[r][c][i * 4 / words]);
}

__device__ __forceinline__ void leave(float4* at, const float* sum) { *at = make_float4(sum[0], sum[1], sum[2], sum[3]); }
__device__ __forceinline__ void leave(float4* at, const double* sum) {
    *reinterpret_cast<double2*>(at) = make_double2(sum[0], sum[1]);
}
__device__ __forceinline__ void collect(float4* at, float* sum) {
    const float4 v = __ldcg(at);
    sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
}
__device__ __forceinline__ void collect(float4* at, double* sum) {
    const double2 v = __ldcg(reinterpret_cast<double2*>(at));
    sum[0] += v.x, sum[1] += v.y;
}

// Tells whether this block finishes the tile that it took last, and makes its sums whole.
__device__ __forceinline__ bool complete(const Shares& s, const Division& all, const Walk& walk, int share, Sum (&sum)[kR][kC][4]) {
    if (walk.whole) return true;
    __shared__ bool last_to_come;
    const int first = all.share_of(walk.begin), last = all.share_of(walk.begin + walk.cost - 1);
    each_word(s.part + static_cast<long long>(2 * share + (share == first)) * kPart, sum, [](float4* at, Sum* v) { leave(at, v); });
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last_to_come = atomicAdd(s.arrived + first, 1) == last - first;
        if (last_to_come) s.arrived[first] = 0;
    }
    __syncthreads();
    if (!last_to_come) return false;
    __threadfence();
#pragma unroll
    for (int i = 0; i < kR * kC * 4; ++i) sum[i / (kC * 4)][i / 4 % kC][i % 4] = 0;
    for (int from = first; from <= last; ++from)
        each_word(s.part + static_cast<long long>(2 * from + (from == first)) * kPart, sum, [](float4* at, Sum* v) { collect(at, v); });
    return true;
}

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) sparse_conv_even(const __grid_constant__ Convolution c, const __grid_constant__ Shares s) {
    begin_dependent();
    SHARED_DYNAMIC(float4, shared);
    __shared__ int2 start;  // tile, and what of it lies before the share
    const int row0 = (threadIdx.x >> 5) / WARPS_N * (kR * 8);
    // Each thread adds up the costs of some tiles; one of them finds where a share begins.
    const int tiles = *c.n_tiles, per = (tiles + kThreads - 1) / kThreads, first = threadIdx.x * per;
    int cost = 0, total = 0;
    for (int i = first; i < min(first + per, tiles); ++i) cost += cost_of(c.tile_mask[i]);
    const int before = block_exclusive_sum<kThreads>(cost, &total);
    const Division all = {total, min(s.count, total)};
    for (int share = blockIdx.x; share < all.count; share += gridDim.x) {
        const int begin = all.begin(share);
        if (before <= begin && begin < before + cost) {
            int tile = first, skip = begin - before;
            for (int next; skip >= (next = cost_of(c.tile_mask[tile])); ++tile) skip -= next;
            start = make_int2(tile, skip);
        }
        __syncthreads();
        Walk walk(c, begin, all.begin(share + 1), start.x, start.y);
        Ring<Walk> ring(c, reinterpret_cast<char*>(shared), walk);
        for (Tile piece = walk.take(); piece.index >= 0; piece = walk.take()) {
            Sum sum[kR][kC][4] = {};
            for (int step = steps_of(piece); step; --step) {
                const char* stage = ring.next();
                if (piece.mask) multiply(sum, stage, stage + kStageA, row0, c.x_scale);
            }
            if (complete(s, all, walk, share, sum)) write(c, c.order + static_cast<long long>(piece.index) * TM + row0, sum);
        }
        __syncthreads();  // the stages and the start are free again
    }
}
