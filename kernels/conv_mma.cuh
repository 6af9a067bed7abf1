// What the tensor-core convolutions share: parameters, tiles, the ring of stages and the end of a
// row. A file that includes this first defines kStagedRows, whether input rows travel through the
// ring beside the weights (sparse_conv_mma.cu) or not (sparse_conv_direct.cu), and kOwnTiles, whether
// each warp has tiles of its own.
//
// Specialised by CIN, COUT (16, 32, 64 or 128), TM, KC, WARPS_M, WARPS_N, STAGES, PRECISION, and
// PARTIAL: 1 writes raw fp32 sums for epilogue.cu, 0 finishes the row. COLUMNS, where it is given, is
// the number of output channels that a block makes of a tile; others make the rest. FLOAT_ROWS, where
// it is 1, has F16 write rows of floats. FOLDED, where it is 1, gives blocks their tiles in a fixed
// order instead of by ticket.
#pragma once
#ifndef COLUMNS
#define COLUMNS COUT
#endif
#ifndef FLOAT_ROWS
#define FLOAT_ROWS 0
#endif
#ifndef FOLDED
#define FOLDED 0
#endif
#include "mma.cuh"

constexpr int kThreads = 32 * WARPS_M * WARPS_N;
constexpr int kElement = PRECISION == F16 ? 2 : 4;         // bytes of a feature, and of its weights
constexpr int kProducts = PRECISION != F64 && CIN * kElement >= 64 ? 2 : 1;  // of a block
constexpr int kBlock = 32 * kProducts;                     // bytes of a row in one fragment
constexpr int kOperand = 512 * kProducts;                  // bytes of the weights of 16 channels in one block
constexpr int kBlockWeights = COUT / 16 * kOperand;        // bytes of the weights of a block
constexpr int kBlockColumns = COLUMNS / 16 * kOperand;     // of those that a stage holds
constexpr int kParts = COUT / COLUMNS;                     // blocks that share a tile
constexpr int kRowBytes = KC * kElement;                   // of a stage
constexpr int kBlocks = kRowBytes / kBlock;                // blocks along a row of a stage
constexpr int kSlabs = CIN / KC;                           // stages of one tap
constexpr int kStageA = kStagedRows ? TM * kRowBytes : 0, kStageB = kBlocks * kBlockColumns;
constexpr int kRowWarps = kOwnTiles ? 1 : WARPS_M;         // that share a tile's rows
constexpr int kR = TM / kRowWarps / 8, kC = COLUMNS / WARPS_N / 16;  // results of a warp: rows, channels
constexpr int kRun = kC > 1 ? 4 : 2;                       // consecutive channels of a lane
constexpr int kQueue = 8;                                  // tiles in flight
static_assert(CIN % KC == 0 && kRowBytes % kBlock == 0, "a stage holds whole blocks");
static_assert(TM % (8 * kRowWarps) == 0 && COLUMNS % (8 * kRun * WARPS_N) == 0, "warps own whole results");
static_assert(COUT % COLUMNS == 0 && (kParts == 1 || kStagedRows), "rows that are staged can be shared");
static_assert(kRun == 4 || COUT == 16, "the weights are packed for pairs of results");
static_assert(kStageA % (16 * kThreads) == 0, "copies of rows are equal");
static_assert(STAGES >= 2 && STAGES + 2 <= kQueue, "the queue is longer than the ring");

using Sum = Operands<PRECISION>::Sum;
using Rows = Operands<PRECISION>::Rows;
using Weights = Operands<PRECISION>::Weights;

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

// A tile, or one of the kParts of it.
struct Tile {
    int index;  // of the tile * kParts + part, or -1: no more
    u32 mask;
};

__device__ __forceinline__ const int* order_of(const Convolution& c, const Tile& tile) {
    return c.order + static_cast<long long>(tile.index / kParts) * TM;
}

__device__ __forceinline__ Tile tile_at(const Convolution& c, int turn) {
    const int place = turn / kParts;
    if (place >= *c.n_tiles) return {-1, 0};
    const int tile = c.tile_rank ? c.tile_rank[place] : place;
    return {tile * kParts + turn % kParts, c.tile_mask[tile]};
}

// Tiles in a fixed order: through all of them, dearest first, the blocks forwards and backwards in
// turns. So the block of a dear tile goes on with a cheap one, and thread 0 looks every tile up while
// the two before it are at work. All members are its own.
struct Fold {
    int tiles = 0;
    int third = -1;     // index of the tile after the next
    Tile second = {};   // the next tile, or the one that was taken last
    int due = -1;       // turn of a tile to look up, or -1

    __device__ __forceinline__ int index(const Convolution& c, int turn) const {
        const int blocks = gridDim.x, unit = turn * blocks + (turn & 1 ? blocks - 1 - blockIdx.x : blockIdx.x), place = unit / kParts;
        if (place >= tiles) return -1;
        return (c.tile_rank ? c.tile_rank[place] : place) * kParts + unit % kParts;
    }
    __device__ __forceinline__ Tile tile(const Convolution& c, int index) const {
        return {index, index < 0 ? 0u : c.tile_mask[index / kParts]};
    }
    __device__ __forceinline__ Tile first(const Convolution& c) {
        tiles = *c.n_tiles;
        const int one = index(c, 0), two = index(c, 1);
        third = index(c, 2), second = tile(c, two);
        return tile(c, one);
    }
    __device__ __forceinline__ Tile take(int turn) {
        due = turn + 2;
        return second;
    }
    // After a tile was taken: its registers are free then, and nothing has to be moved, which would
    // wait for what is read here.
    __device__ __forceinline__ void look_up(const Convolution& c) {
        if (due < 0) return;
        second = tile(c, third), third = index(c, due), due = -1;
    }
};

// ---- the ring ------------------------------------------------------------------------------------

// 16-byte part `chunk` of a row in shared memory. Neighbouring rows are permuted differently, so that
// the rows that are read at once (two of 64-byte blocks, four of 32-byte ones) lie on different banks.
__device__ __forceinline__ int place(int row, int chunk) {
    if (kProducts == 2 && kRowBytes >= 128) chunk ^= (row & 1) << 2;
    if (kProducts == 1 && kRowBytes >= 128) chunk ^= (row & 3) << 1;
    if (kProducts == 1 && kRowBytes == 64) chunk ^= row & 2;
    return row * kRowBytes + chunk * 16;
}

// Where lane t finds its part of a block of a row.
__device__ __forceinline__ int part_at(int row, int block, int t) {
    return kProducts == 2 ? place(row, block * 4 + t) : place(row, block * 2 + t / 2) + t % 2 * 8;
}

// Slabs of a tile. One without taps takes an empty turn, so that its rows are written too.
__device__ __forceinline__ int steps_of(const Tile& tile) { return tile.mask ? __popc(tile.mask) * kSlabs : 1; }

// Copies slab after slab, tile after tile, into the ring of stages. A tile is claimed when the one
// before it begins; the barrier of the step between makes it known to every thread. Where FOLDED, a
// tile begins as soon as the last tap of the one before it is taken, so that its first rows are known
// in time.
struct Ring {
    const Convolution& c;
    char* smem;
    Tile* queue;
    int turn = 0;           // tiles begun
    Fold fold;
    bool closed = false;
    bool empty = false;     // the tile has no tap, and its empty turn is still to come
    bool begun = false;     // the last first slab was that of a tile
    u32 taps = 0;           // of this tile, still to come
    int slab = 0;
    int stage = 0, refill = STAGES - 1;
    u32 table = 0, weight = 0;      // next tap: entry of the table, byte of the weights
    u32 column = 0;                 // byte of the weights where the part of the tile begins
    static constexpr int row_copies = kRowBytes / 16, copied_rows = kThreads / row_copies;
    static constexpr int copies_a = kStageA / 16 / kThreads, copies_b = (kStageB / 16 + kThreads - 1) / kThreads;
    static_assert(kThreads % row_copies == 0, "a thread copies the same part of each of its rows");
    int source[copies_a + 1], ahead[copies_a + 1];  // one is unused: an array may not be empty

    __device__ __forceinline__ Ring(const Convolution& conv, char* shared, Tile* tiles) : c(conv), smem(shared), queue(tiles) {
        if (threadIdx.x == 0) queue[0] = FOLDED ? fold.first(c) : tile_at(c, blockIdx.x);
        __syncthreads();
        for (int s = 0; s < STAGES - 1; ++s) {
            load(s);
            copy_commit();
            __syncthreads();  // the tile that this load claimed
        }
    }

    // Waits for the next stage, refills the one before it and returns where the stage begins.
    __device__ __forceinline__ const char* next() {
        copy_wait<STAGES - 2>();
        __syncthreads();
        load(refill);
        copy_commit();
        const char* at = smem + stage * (kStageA + kStageB);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        refill = refill + 1 < STAGES ? refill + 1 : 0;
        return at;
    }

    __device__ __forceinline__ void look_up(int (&rows)[copies_a + 1]) {
#pragma unroll
        for (int i = 0; i < copies_a; ++i) rows[i] = c.table[table + threadIdx.x / row_copies + i * copied_rows];
        table += TM;
    }

    __device__ __forceinline__ void begin_tile() {
        if (FOLDED && closed) return;
        const Tile tile = queue[turn % kQueue];
        ++turn;
        closed = tile.index < 0;
        if (closed) return;
        if (threadIdx.x == 0) queue[turn % kQueue] = FOLDED ? fold.take(turn) : tile_at(c, gridDim.x + atomicAdd(c.ticket, 1));
        taps = tile.mask;
        empty = !taps;
        table = static_cast<u32>(tile.index / kParts) * c.group_taps * TM;
        column = tile.index % kParts * kBlockColumns;
        if (taps) look_up(FOLDED ? source : ahead);
    }

    __device__ __forceinline__ void look_ahead() {
        if (FOLDED && threadIdx.x == 0) fold.look_up(c);
    }

    __device__ __forceinline__ void load(int to) {
        if (!FOLDED && closed) return;  // the last slabs are still to come where the end is known early
        if (slab == 0) {
            const bool begins = !taps && !(FOLDED && empty);  // one a load: the next tile is known after a barrier
            if (begins) begin_tile();
            empty = false;
            if (!taps) return look_ahead();
            weight = (__ffs(taps) - 1) * (CIN * COUT * kElement) + column;
            taps &= taps - 1;
            if (!FOLDED) {
#pragma unroll
                for (int i = 0; i < copies_a; ++i) source[i] = ahead[i];
                if (taps) look_up(ahead);
            }
            begun = begins;
        }
        char* a = smem + to * (kStageA + kStageB);
        const int row = threadIdx.x / row_copies, chunk = threadIdx.x % row_copies;
        const char* x = static_cast<const char*>(c.x) + slab * kRowBytes + chunk * 16;
#pragma unroll
        for (int i = 0; i < copies_a; ++i) {
            const bool present = source[i] >= 0;
            const long long from = static_cast<long long>(present ? source[i] : 0) * (CIN * kElement);
            copy16_async(a + place(row + i * copied_rows, chunk), x + from, present);
        }
        const char* w = static_cast<const char*>(c.weight) + weight + slab * (kBlocks * kBlockWeights);
#pragma unroll
        for (int i = 0; i < copies_b; ++i) {
            const int e = (threadIdx.x + i * kThreads) * 16;
            if (kStageB % (16 * kThreads) == 0 || e < kStageB) copy16_async(a + kStageA + e, w + (kParts == 1 ? e : e / kBlockColumns * kBlockWeights + e % kBlockColumns), true);
        }
        look_ahead();
        if (++slab == kSlabs) {
            slab = 0;
            // Into the registers that the copies above were the last to read: a move would wait for them.
            if (FOLDED && taps) look_up(source);
            else if (FOLDED && (kSlabs > 1 || !begun)) begin_tile();
        }
    }
};

// ---- operands ------------------------------------------------------------------------------------

// A lane's part of a block of a row.
__device__ __forceinline__ uint4 load_part(const char* from) {
    if constexpr (kProducts == 2) return *reinterpret_cast<const uint4*>(from);
    const uint2 half = *reinterpret_cast<const uint2*>(from);
    return make_uint4(half.x, half.y, 0u, 0u);
}

__device__ __forceinline__ Weights load_weights(const char* from) {
    from += (threadIdx.x & 31) * 16;
    uint4 v[2] = {};
#pragma unroll
    for (int p = 0; p < kProducts; ++p) v[p] = *reinterpret_cast<const uint4*>(from + p * 512);
    return weights_from<PRECISION>(v[0], v[1]);
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

// Bias and residual are added before F64 rounds.
__device__ __forceinline__ void finish(const Convolution& c, int row, int channel, const Sum (&sum)[kRun]) {
    const long long at = static_cast<long long>(row) * COUT + channel;
    Run bias = {}, residual = {}, run;
    if (!PARTIAL && c.bias) bias = load_run<false>(c.bias, channel);
    if (!PARTIAL && c.residual) residual = load_run<PRECISION == F16>(c.residual, at);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
        Sum v = sum[i];
        if (PRECISION == F16X3) v *= c.out_scale;
        if (!PARTIAL) v = v + bias.v[i] + residual.v[i];
        run.v[i] = static_cast<float>(v);
        if (!PARTIAL && c.relu) run.v[i] = relu(run.v[i]);
    }
    store_run<PRECISION == F16 && !PARTIAL && !FLOAT_ROWS>(c.out, at, run);
}

// The numbers of the rows that a warp writes: where FOLDED they are read at once, and each lane keeps
// some, else when they are needed.
struct RowNumbers {
#if FOLDED
    static constexpr int words = (kR * 8 + 31) / 32, in_lanes = kR * 8 < 32 ? kR * 8 : 32;
    static_assert((kR & (kR - 1)) == 0, "lanes hold whole words");
    int word[words];

    __device__ __forceinline__ void load(const int* order) {
#pragma unroll
        for (int i = 0; i < words; ++i) word[i] = order[i * 32 + threadIdx.x % in_lanes];
    }
    __device__ __forceinline__ int2 pair(int first) const {
        const int from = word[first / 32];
        return make_int2(__shfl_sync(0xffffffffu, from, first % 32), __shfl_sync(0xffffffffu, from, first % 32 + 1));
    }
#else
    const int* order;

    __device__ __forceinline__ void load(const int* from) { order = from; }
    __device__ __forceinline__ int2 pair(int first) const { return *reinterpret_cast<const int2*>(order + first); }
#endif
};

// Writes what a warp summed to rows; `column` is the first channel of the block.
__device__ __forceinline__ void write(const Convolution& c, const RowNumbers& rows, const Sum (&sum)[kR][kC][4], int column = 0) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int channel0 = column + warp % WARPS_N * (kC * 16) + kRun * g;
#pragma unroll
    for (int r = 0; r < kR; ++r) {
        const int2 pair = rows.pair(r * 8 + 2 * t);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int row = side ? pair.y : pair.x;
            if (row < 0) continue;
#pragma unroll
            for (int c0 = 0; c0 < kC; c0 += kRun / 2) {
                Sum run[kRun];
#pragma unroll
                for (int i = 0; i < kRun; ++i) run[i] = sum[r][c0 + i / 2][i % 2 * 2 + side];
                finish(c, row, channel0 + c0 * 16, run);
            }
        }
    }
}
