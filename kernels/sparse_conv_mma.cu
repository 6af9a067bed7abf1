// Masked implicit GEMM on the tensor cores, the same tables as sparse_conv.cu:
//
//   out[row] = epilogue( sum over taps k of  x[input_row(row, k)] @ w[k] )
//
// in three precisions (mma.cuh): F16 (half features, fp32 sums), TF32 and F16X3 (fp32 features).
//
// A block owns tiles of TM output rows and all COUT channels; its WARPS_M x WARPS_N warps own a
// rectangle of the tile each. Input rows travel by 16-byte asynchronous copies, KC channels of one
// tap at a time, together with the weights of those channels, into a ring of STAGES stages. Both
// operands are read as whole 16-byte fragments: rows as they lie in memory, weights packed once in
// the order the lanes want them (mma.cuh). That makes every shared access conflict-free without
// ldmatrix, in every precision, and the weights of a stage one contiguous copy.
//
// The ring never drains between tiles: copies of the next tile run while this one is multiplied and
// written. Tiles come from a ticket, dearest first.
//
// Sums of one row run over taps in ascending order, whatever tile the row fell into: an absent tap
// adds exact zeros. Same tactic, same bytes.
//
// Specialised by CIN, COUT (16, 32, 64 or 128), TM, KC, WARPS_M, WARPS_N, STAGES, MIN_BLOCKS,
// PRECISION, and PARTIAL: 1 writes raw fp32 sums for epilogue.cu, 0 finishes the row.
#include "mma.cuh"

constexpr int kThreads = 32 * WARPS_M * WARPS_N;
constexpr int kElement = PRECISION == F16 ? 2 : 4;         // bytes of a feature, and of its weights
constexpr int kProducts = CIN * kElement >= 64 ? 2 : 1;    // 1: rows of 16 halves
constexpr int kBlock = 32 * kProducts;                     // bytes of a row in one fragment
constexpr int kRowBytes = KC * kElement;
constexpr int kBlocks = kRowBytes / kBlock;                // fragments along a row of a stage
constexpr int kStageA = TM * kRowBytes, kStageB = KC * COUT * kElement;
constexpr int kCopiesA = kStageA / 16 / kThreads, kCopiesB = (kStageB / 16 + kThreads - 1) / kThreads;
constexpr int kRowCopies = kRowBytes / 16;
constexpr int kSlabs = CIN / KC;                           // slabs of one tap
constexpr int kR = TM / WARPS_M / 8, kC = COUT / WARPS_N / 16;  // results of a warp: rows, channels
constexpr int kRun = kC > 1 ? 4 : 2;                       // consecutive channels of a lane
constexpr int kQueue = 8;                                  // tiles in flight
static_assert(CIN % KC == 0 && kRowBytes % kBlock == 0, "a stage holds whole fragments");
static_assert(TM % (8 * WARPS_M) == 0 && COUT % (8 * kRun * WARPS_N) == 0, "warps own whole results");
static_assert(kRun == 4 || COUT == 16, "the weights are packed for pairs of results");
static_assert(kStageA % (16 * kThreads) == 0, "copies of rows are equal");
static_assert(STAGES >= 2 && STAGES + 2 <= kQueue, "the queue is longer than the ring");

struct Convolution {
    const void* x;          // (input rows, CIN) halves or floats
    const void* weight;     // (taps, CIN, COUT) packed
    const float* bias;      // (COUT) or null
    const void* residual;   // (rows, COUT) as x, or null
    void* out;              // (rows, COUT) as x, or one such block of floats a group where PARTIAL
    const int* order;       // (tiles, TM)
    const int* table;       // (tiles, group_taps, TM)
    const u32* tile_mask;   // (tiles)
    const int* tile_rank;   // (tiles) tile to run next, dearest first, or null
    const int* n_tiles;
    int* ticket;            // next tile to run; zero at launch
    int group_taps;
    int relu;
    float x_scale;          // F16X3: power of two for features
    float out_scale;        // F16X3: 1 / (x_scale * scale of the packed weights)
};

// 16-byte part `chunk` of a row in shared memory. Rows of 128 bytes or more put odd rows' halves
// the other way round, so that two rows of a fragment lie on different banks.
__device__ __forceinline__ int place(int row, int chunk) {
    if (kRowBytes >= 128) chunk ^= (row & 1) << 2;
    return row * kRowBytes + chunk * 16;
}

struct Tile {
    int index;  // or -1: no more
    u32 mask;
};

__device__ __forceinline__ Tile tile_at(const Convolution& c, int turn) {
    if (turn >= *c.n_tiles) return {-1, 0};
    const int index = c.tile_rank ? c.tile_rank[turn] : turn;
    return {index, c.tile_mask[index]};
}

// Slabs of a tile. One without taps takes an empty turn, so that its rows are written too.
__device__ __forceinline__ int steps_of(const Tile& tile) { return tile.mask ? __popc(tile.mask) * kSlabs : 1; }

// Copies slab after slab, tile after tile, into the ring of stages. A tile is claimed when the one
// before it begins; the barrier of the step between makes it known to every thread.
struct Loader {
    const Convolution& c;
    char* smem;
    Tile* queue;
    int turn;               // tiles begun
    bool closed;
    u32 taps;               // of this tile, still to come
    int slab;
    const int* table;       // row of the table for the next tap
    const char* weight;
    int source[kCopiesA], ahead[kCopiesA];

    __device__ Loader(const Convolution& conv, char* shared, Tile* tiles)
        : c(conv), smem(shared), queue(tiles), turn(0), closed(false), taps(0), slab(0), table(nullptr), weight(nullptr) {}

    __device__ __forceinline__ void look_up() {
#pragma unroll
        for (int i = 0; i < kCopiesA; ++i) ahead[i] = table[(threadIdx.x + i * kThreads) / kRowCopies];
        table += TM;
    }

    __device__ __forceinline__ void begin_tile() {
        const Tile tile = queue[turn % kQueue];
        ++turn;
        closed = tile.index < 0;
        if (closed) return;
        if (threadIdx.x == 0) queue[turn % kQueue] = tile_at(c, gridDim.x + atomicAdd(c.ticket, 1));
        taps = tile.mask;
        table = c.table + static_cast<long long>(tile.index) * c.group_taps * TM;
        if (taps) look_up();
    }

    __device__ __forceinline__ void load(int stage) {
        if (closed) return;
        if (slab == 0) {
            if (!taps) begin_tile();
            if (!taps) return;
            weight = static_cast<const char*>(c.weight) + static_cast<long long>(__ffs(taps) - 1) * (CIN * COUT * kElement);
            taps &= taps - 1;
#pragma unroll
            for (int i = 0; i < kCopiesA; ++i) source[i] = ahead[i];
            if (taps) look_up();
        }
        char* a = smem + stage * kStageA;
#pragma unroll
        for (int i = 0; i < kCopiesA; ++i) {
            const int e = threadIdx.x + i * kThreads, row = e / kRowCopies, chunk = e % kRowCopies;
            const bool present = source[i] >= 0;
            const long long from = static_cast<long long>(present ? source[i] : 0) * (CIN * kElement);
            copy16_async(a + place(row, chunk), static_cast<const char*>(c.x) + from + slab * kRowBytes + chunk * 16, present);
        }
        char* b = smem + STAGES * kStageA + stage * kStageB;
#pragma unroll
        for (int i = 0; i < kCopiesB; ++i) {
            const int e = (threadIdx.x + i * kThreads) * 16;
            if (kStageB % (16 * kThreads) == 0 || e < kStageB) copy16_async(b + e, weight + slab * kStageB + e, true);
        }
        if (++slab == kSlabs) slab = 0;
    }
};

// sum += w[KC][channels of the warp] * x[rows of the warp][KC]
__device__ __forceinline__ void multiply(float (&sum)[kR][kC][4], const char* x, const char* w, float scale) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int row0 = warp / WARPS_N * (kR * 8) + (lane >> 2), t = lane & 3, c0 = warp % WARPS_N * kC;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
        Rows rows[kR];
#pragma unroll
        for (int r = 0; r < kR; ++r) {
            uint4 v = make_uint4(0u, 0u, 0u, 0u);
            if constexpr (kProducts == 2) {
                v = *reinterpret_cast<const uint4*>(x + place(row0 + r * 8, block * 4 + t));
            } else {
                const uint2 half = *reinterpret_cast<const uint2*>(x + (row0 + r * 8) * kRowBytes + block * kBlock + t * 8);
                v.x = half.x, v.y = half.y;
            }
            rows[r] = rows_from<PRECISION>(v, scale);
        }
#pragma unroll
        for (int c = 0; c < kC; ++c) {
            Weights weights;
#pragma unroll
            for (int p = 0; p < kProducts; ++p)
                *reinterpret_cast<uint4*>(weights.part[p]) = *reinterpret_cast<const uint4*>(
                    w + (((block * (COUT / 16) + c0 + c) * kProducts + p) * 32 + lane) * 16);
#pragma unroll
            for (int r = 0; r < kR; ++r) multiply_block<PRECISION, kProducts>(sum[r][c], weights, rows[r]);
        }
    }
}

// ---- the channels of a row that a lane holds ----------------------------------------------------

struct Run {
    float v[kRun];
};
template <int N>
struct alignas(4 * N) Words {
    u32 word[N];
};

// Features are halves where HALF, else floats.
template <bool HALF>
__device__ __forceinline__ Run load_run(const void* base, long long at) {
    constexpr int words = HALF ? kRun / 2 : kRun;
    const auto raw = *reinterpret_cast<const Words<words>*>(static_cast<const char*>(base) + at * (HALF ? 2 : 4));
    Run run;
#pragma unroll
    for (int i = 0; i < words; ++i) {
        if constexpr (HALF) {
            const float2 pair = unpack_half2(raw.word[i]);
            run.v[2 * i] = pair.x, run.v[2 * i + 1] = pair.y;
        } else {
            run.v[i] = __uint_as_float(raw.word[i]);
        }
    }
    return run;
}

template <bool HALF>
__device__ __forceinline__ void store_run(void* base, long long at, const Run& run) {
    constexpr int words = HALF ? kRun / 2 : kRun;
    Words<words> raw;
#pragma unroll
    for (int i = 0; i < words; ++i)
        raw.word[i] = HALF ? pack_half2(run.v[2 * i % kRun], run.v[(2 * i + 1) % kRun]) : __float_as_uint(run.v[i]);
    *reinterpret_cast<Words<words>*>(static_cast<char*>(base) + at * (HALF ? 2 : 4)) = raw;
}

__device__ __forceinline__ void finish(const Convolution& c, int row, int channel, Run run) {
    const long long at = static_cast<long long>(row) * COUT + channel;
    Run bias = {}, residual = {};
    if (!PARTIAL && c.bias) bias = load_run<false>(c.bias, channel);
    if (!PARTIAL && c.residual) residual = load_run<PRECISION == F16>(c.residual, at);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
        float& v = run.v[i];
        if (PRECISION == F16X3) v *= c.out_scale;
        if (!PARTIAL) v = v + bias.v[i] + residual.v[i];
        if (!PARTIAL && c.relu) v = relu(v);
    }
    store_run<PRECISION == F16 && !PARTIAL>(c.out, at, run);
}

// Writes what a warp summed.
__device__ __forceinline__ void write(const Convolution& c, const int* order, const float (&sum)[kR][kC][4]) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int row0 = warp / WARPS_N * (kR * 8) + 2 * t, channel0 = warp % WARPS_N * (kC * 16) + kRun * g;
#pragma unroll
    for (int r = 0; r < kR; ++r) {
        const int2 rows = *reinterpret_cast<const int2*>(order + row0 + r * 8);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int row = side ? rows.y : rows.x;
            if (row < 0) continue;
#pragma unroll
            for (int c0 = 0; c0 < kC; c0 += kRun / 2) {
                Run run;
#pragma unroll
                for (int i = 0; i < kRun; ++i) run.v[i] = sum[r][c0 + i / 2][i % 2 * 2 + side];
                finish(c, row, channel0 + c0 * 16, run);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) sparse_conv_mma(const __grid_constant__ Convolution c) {
    SHARED_DYNAMIC(float4, shared);
    __shared__ Tile queue[kQueue];
    char* smem = reinterpret_cast<char*>(shared);
    if (threadIdx.x == 0) queue[0] = tile_at(c, blockIdx.x);
    __syncthreads();
    Loader loader(c, smem, queue);
    for (int s = 0; s < STAGES - 1; ++s) {
        loader.load(s);
        copy_commit();
        __syncthreads();  // the tile that this load claimed
    }
    int stage = 0, refill = STAGES - 1;
    for (int turn = 0;; ++turn) {
        const Tile tile = queue[turn % kQueue];
        if (tile.index < 0) return;
        float sum[kR][kC][4] = {};
        for (int step = steps_of(tile); step; --step) {
            copy_wait<STAGES - 2>();
            __syncthreads();
            loader.load(refill);
            copy_commit();
            if (tile.mask) multiply(sum, smem + stage * kStageA, smem + STAGES * kStageA + stage * kStageB, c.x_scale);
            stage = stage + 1 < STAGES ? stage + 1 : 0;
            refill = refill + 1 < STAGES ? refill + 1 : 0;
        }
        write(c, c.order + static_cast<long long>(tile.index) * TM, sum);
    }
}
