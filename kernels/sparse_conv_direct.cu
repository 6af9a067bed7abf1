// Masked implicit GEMM on the tensor cores for rows in spatial order, the same tables and precisions
// as sparse_conv_mma.cu.
//
// A lane's part of an operand is 16 consecutive bytes of an input row (mma.cuh), so rows need not
// pass through shared memory: each lane loads its part straight from global memory, one block ahead
// of the products, by way of the first-level cache. Where output rows lie in spatial order, the taps
// of a tile ask for the same few input rows again and again (1.9 different ones an output row in 128
// rows, where 15 are asked for), so most of it never reaches the second level. Eight rows that all
// lack a tap skip its products: spatial order wastes less than whole tiles would.
//
// The weights of a block of warps travel through the ring of stages; where those of all taps fit
// (RESIDENT), they are copied once, and every warp walks tiles of its own without any barrier.
//
// Sums of one row run over taps in ascending order: same tactic, same bytes.
//
// Specialised as conv_mma.cuh says, and by MIN_BLOCKS, RESIDENT and, where resident, TAPS; then TM is
// the tile of one warp and counts WARPS_M times in a block.
constexpr bool kStagedRows = false, kOwnTiles = RESIDENT;
#include "conv_mma.cuh"

static_assert(!RESIDENT || (WARPS_N == 1 && KC == CIN), "a resident warp owns whole rows");

// The parts of input rows that a warp needs, block after block, tap after tap of a tile.
struct Stream {
    const Convolution& c;
    u32 table;              // entry of this lane's first row for the next tap
    int taps, block;        // still to look up; block to load next
    int source[kR], ahead[kR];
    u32 present, next_present;
    uint4 part[kR];

    __device__ __forceinline__ Stream(const Convolution& conv, const Tile& tile, int row0) : c(conv) {
        table = static_cast<u32>(tile.index) * c.group_taps * TM + row0 + (threadIdx.x >> 2 & 7);
        taps = __popc(tile.mask);
        block = 0;
        look_up();
        fetch();
    }

    __device__ __forceinline__ void look_up() {
#pragma unroll
        for (int r = 0; r < kR; ++r) ahead[r] = taps ? c.table[table + r * 8] : -1;
        table += TM;
    }

    // Bit r of `present`: some row of the eight has this tap.
    __device__ __forceinline__ void fetch() {
        if (block == 0) {
            next_present = 0;
#pragma unroll
            for (int r = 0; r < kR; ++r) {
                source[r] = ahead[r];
                next_present |= (__ballot_sync(0xffffffffu, source[r] >= 0) != 0) << r;
            }
            if (taps) --taps;
            look_up();
        }
        present = next_present;
#pragma unroll
        for (int r = 0; r < kR; ++r) {
            part[r] = make_uint4(0u, 0u, 0u, 0u);
            const long long from = static_cast<long long>(source[r]) * (CIN * kElement) + block * kBlock + (threadIdx.x & 3) * (kBlock / 4);
            if (source[r] >= 0) part[r] = load_part(static_cast<const char*>(c.x) + from);
        }
        if (++block == CIN * kElement / kBlock) block = 0;
    }
};

// sum += w[block][channels of the warp] * the next block of the stream
__device__ __forceinline__ void multiply(Sum (&sum)[kR][kC][4], Stream& stream, const char* w, float scale) {
    constexpr int pair = kC > 1 ? 2 : 1;  // left operands held at a time
    Rows rows[kR];
#pragma unroll
    for (int r = 0; r < kR; ++r) rows[r] = rows_from<PRECISION>(stream.part[r], scale);
    const u32 present = stream.present;
    stream.fetch();
    if (!present) return;
#pragma unroll
    for (int c0 = 0; c0 < kC; c0 += pair) {
        Weights weights[pair];
#pragma unroll
        for (int c = 0; c < pair; ++c) weights[c] = load_weights(w + (c0 + c) * kOperand);
#pragma unroll
        for (int r = 0; r < kR; ++r) {
            if (!(present >> r & 1u)) continue;
#pragma unroll
            for (int c = 0; c < pair; ++c) multiply_block<PRECISION, kProducts>(sum[r][c0 + c], weights[c], rows[r]);
        }
    }
}

#if RESIDENT
__device__ __forceinline__ void convolve(const Convolution& c, char* smem) {
    for (int e = threadIdx.x * 16; e < TAPS * CIN * COUT * kElement; e += kThreads * 16)
        copy16_async(smem + e, static_cast<const char*>(c.weight) + e, true);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = gridDim.x * WARPS_M;
    for (int turn = warp * gridDim.x + blockIdx.x;;) {
        const Tile tile = tile_at(c, turn);
        if (tile.index < 0) return;
        int next = 0;
        if (lane == 0) next = warps + atomicAdd(c.ticket, 1);
        Stream stream(c, tile, 0);
        Sum sum[kR][kC][4] = {};
        for (u32 taps = tile.mask; taps; taps &= taps - 1) {
            const char* w = smem + (__ffs(taps) - 1) * (CIN * COUT * kElement);
#pragma unroll
            for (int block = 0; block < kBlocks; ++block) multiply(sum, stream, w + block * kBlockWeights, c.x_scale);
        }
        RowNumbers rows;
        rows.load(order_of(c, tile));
        write(c, rows, sum);
        turn = __shfl_sync(0xffffffffu, next, 0);
    }
}
#else
__device__ __forceinline__ void convolve(const Convolution& c, char* smem) {
    __shared__ Tile queue[kQueue];
    const int warp = threadIdx.x >> 5, row0 = warp / WARPS_N * (kR * 8);
    Ring ring(c, smem, queue);
    for (int turn = 0;; ++turn) {
        const Tile tile = queue[turn % kQueue];
        if (tile.index < 0) return;
        Stream stream(c, tile, row0);
        Sum sum[kR][kC][4] = {};
        for (int step = steps_of(tile); step; --step) {
            const char* w = ring.next() + warp % WARPS_N * (kC * kOperand);
            if (!tile.mask) continue;
#pragma unroll
            for (int block = 0; block < kBlocks; ++block) multiply(sum, stream, w + block * kBlockWeights, c.x_scale);
        }
        RowNumbers rows;
        rows.load(order_of(c, tile) + row0);
        write(c, rows, sum);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) sparse_conv_direct(const __grid_constant__ Convolution c) {
    begin_dependent();
    SHARED_DYNAMIC(float4, shared);
    convolve(c, reinterpret_cast<char*>(shared));
}
