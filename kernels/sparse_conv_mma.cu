// Masked implicit GEMM on the tensor cores, the same tables as sparse_conv.cu:
//
//   out[row] = epilogue( sum over taps k of  x[input_row(row, k)] @ w[k] )
//
// in four precisions (mma.cuh): F16 (half features, fp32 sums), and TF32, F16X3 (fp32 sums) and F64
// (float64 sums) with fp32 features.
//
// A block owns tiles of TM output rows and all COUT channels, or COLUMNS of them; its WARPS_M x WARPS_N warps own a
// rectangle of the tile each. Input rows travel by 16-byte asynchronous copies, KC channels of one
// tap at a time, together with the weights of those channels, into a ring of STAGES stages. Both
// operands are read as whole 16-byte fragments: rows as they lie in memory, weights packed once in
// the order the lanes want them (mma.cuh). That makes every shared access conflict-free without
// ldmatrix, in every precision, and the weights of a stage one contiguous copy.
//
// The ring never drains between tiles: copies of the next tile run while this one is multiplied and
// written. Tiles come from a ticket, dearest first, or where FOLDED in a fixed order; then everything
// about a tile is looked up while those before it are at work.
//
// Sums of one row run over taps in ascending order, whatever tile the row fell into: an absent tap
// adds exact zeros. Same tactic, same bytes.
//
// Specialised as conv_mma.cuh says, and by MIN_BLOCKS.
constexpr bool kStagedRows = true, kOwnTiles = false;
#include "conv_mma.cuh"

// sum += w[KC][channels of the warp] * x[rows of the warp][KC]
__device__ __forceinline__ void multiply(Sum (&sum)[kR][kC][4], const char* x, const char* w, int row0, float scale) {
    const int g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;
    w += (threadIdx.x >> 5) % WARPS_N * (kC * kOperand);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block, w += kBlockColumns) {
        Rows rows[kR];
#pragma unroll
        for (int r = 0; r < kR; ++r) rows[r] = rows_from<PRECISION>(load_part(x + part_at(row0 + g + r * 8, block, t)), scale);
#pragma unroll
        for (int c = 0; c < kC; ++c) {
            const Weights weights = load_weights(w + c * kOperand);
#pragma unroll
            for (int r = 0; r < kR; ++r) multiply_block<PRECISION, kProducts>(sum[r][c], weights, rows[r]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS) sparse_conv_mma(const __grid_constant__ Convolution c) {
    begin_dependent();
    SHARED_DYNAMIC(float4, shared);
    __shared__ Tile queue[kQueue];
    const int row0 = (threadIdx.x >> 5) / WARPS_N * (kR * 8);
    Ring ring(c, reinterpret_cast<char*>(shared), queue);
    for (int turn = 0;; ++turn) {
        const Tile tile = queue[turn % kQueue];
        if (tile.index < 0) return;
        RowNumbers rows;
        if (FOLDED) rows.load(order_of(c, tile) + row0);  // there long before the rows are written
        Sum sum[kR][kC][4] = {};
        for (int step = steps_of(tile); step; --step) {
            const char* stage = ring.next();
            if (tile.mask) multiply(sum, stage, stage + kStageA, row0, c.x_scale);
        }
        if (!FOLDED) rows.load(order_of(c, tile) + row0);
        write(c, rows, sum, tile.index % kParts * COLUMNS);
    }
}
