// Exact FP32 masked implicit GEMM on the CUDA cores.
//
//   out[row] = epilogue( sum over taps k of  x[input_row(row, k)] @ w[k] )
//
// A block owns tiles of TM output rows that use similar taps (coordmap.cu) and all COUT channels.
// It walks the taps of the tile in ascending order, KC input channels at a time: gathered input rows
// and a slab of weights travel to shared memory asynchronously, STAGES deep, while each thread
// multiplies an RPT x CPT corner of the tile in registers.
//
// Weights lie as [tap][input channel][output channel], so a slab is contiguous; ffma.cuh multiplies.
//
// Sums of one row always run over taps in ascending order inside a group and over groups in
// ascending order, whatever tile the row fell into: same tactic, same bytes.
//
// Specialised at compile time by CIN, COUT, TM, KC, RPT, CPT, STAGES and MIN_BLOCKS.
#include "ffma.cuh"

struct Convolution {
    const float* x;         // (input rows, CIN)
    const float* weight;    // (taps, CIN, COUT)
    const float* bias;      // (COUT) or null
    const float* residual;  // (rows, COUT) or null
    float* out;             // (rows, COUT), or one such block a group where groups > 1
    const int* order;       // (tiles, TM)
    const int* table;       // (tiles, group_taps, TM)
    const u32* tile_mask;   // (tiles)
    const int* tile_rank;   // (tiles) tile to run next, dearest first, or null
    const int* n_tiles;
    int* ticket;            // next tile to run; zero at launch
    int group_taps;
    int relu;
};

struct Epilogue {
    __device__ static float4 apply(const Convolution& c, float4 v, long long at, int channel) {
        if (c.bias) v = add(v, *reinterpret_cast<const float4*>(c.bias + channel));
        if (c.residual) v = add(v, *reinterpret_cast<const float4*>(c.residual + at));
        return c.relu ? relu4(v) : v;
    }
};

// Copies slab after slab of a tile's taps into the ring of stages.
struct Loader {
    const Convolution& c;
    float *a, *b;
    const int* table;
    const float* weight;
    u32 taps;               // still to come
    int slab, slot, source[kCopiesA];

    __device__ Loader(const Convolution& conv, float* smem, int tile, u32 mask)
        : c(conv), a(smem), b(smem + STAGES * kStageA),
          table(conv.table + static_cast<long long>(tile) * conv.group_taps * TM),
          weight(nullptr), taps(mask), slab(0), slot(0) {}

    __device__ __forceinline__ void load(int stage) {
        if (slab == 0) {
            weight = c.weight + static_cast<long long>(__ffs(taps) - 1) * (CIN * COUT);
            taps &= taps - 1;
#pragma unroll
            for (int i = 0; i < kCopiesA; ++i)
                source[i] = table[slot * TM + (threadIdx.x + i * kThreads) / (KC / 4)];
            ++slot;
        }
        copy_slab(*this, c.x, stage);
        if (++slab == kSlabs) slab = 0;
    }
};

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS)
sparse_conv(const __grid_constant__ Convolution c) {
    begin_dependent();
    SHARED_DYNAMIC(float, smem);
    // Two, since a tile without taps has no other barrier: one may be written while one is read.
    __shared__ int next_tile[2];
    const Corner corner;
    const int row0 = corner.row0, channel0 = corner.channel0;
    const int tiles = *c.n_tiles;
    for (int turn = blockIdx.x, side = 0; turn < tiles; side ^= 1) {
        const int tile = c.tile_rank ? c.tile_rank[turn] : turn;
        const u32 mask = c.tile_mask[tile];
        const int steps = __popc(mask) * kSlabs;
        Loader loader(c, smem, tile, mask);
        float acc[RPT][CPT] = {};
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) {
            if (s < steps) loader.load(s);
            copy_commit();
        }
        for (int step = 0; step < steps; ++step) {
            copy_wait<STAGES - 2>();
            __syncthreads();
            if (step + STAGES - 1 < steps) loader.load((step + STAGES - 1) % STAGES);
            copy_commit();
            const int stage = step % STAGES;
            multiply(acc, smem + stage * kStageA + row0 * kRowStride,
                     smem + STAGES * kStageA + stage * kStageB + channel0);
        }
        copy_wait<0>();
#pragma unroll
        for (int i = 0; i < RPT; ++i) {
            const int row = c.order[static_cast<long long>(tile) * TM + row0 + i * kLanesR];
            if (row < 0) continue;
#pragma unroll
            for (int r = 0; r < kRuns; ++r) {
                const int channel = channel0 + r * kLanesC * 4;
                const long long at = static_cast<long long>(row) * COUT + channel;
                const float4 v = make_float4(acc[i][r * 4], acc[i][r * 4 + 1], acc[i][r * 4 + 2], acc[i][r * 4 + 3]);
                *reinterpret_cast<float4*>(c.out + at) = Epilogue::apply(c, v, at, channel);
            }
        }
        if (threadIdx.x == 0) next_tile[side] = gridDim.x + atomicAdd(c.ticket, 1);
        __syncthreads();  // also keeps the next tile's copies behind this tile's reads
        turn = next_tile[side];
    }
}
