// Builds the scatter map of a camera rig: which frustum points fall into which cells.
//
//   project_points   where each point (camera, depth, v, u) lies, in float64 -> its cell as key; points
//                    outside get the key `cells`, so that they end up behind all others and are
//                    never taken for points of cell 0
//   count_digits     per block: how often each 8-bit digit of the key occurs
//   scan_digits      exclusive sums of these counts, digit after digit, block after block
//   scatter_digits   stable scatter by digit; these three once per 8 bits of the largest key
//   write_map        the first point of each cell starts an interval, numbered by a scan; ranks
//   write_lengths    lengths from neighbouring starts
//
// The sort is stable and starts in the order (camera, depth, v, u), so the points of a cell stay in
// it. All counts stay on the device. Arithmetic: each operation rounded by itself and in the order of
// core/reference/bev_pool.py, so both give the same cells bit by bit.
//
// Estimate: 8 bytes a point and pass read and written; 2 M points in 3 passes about 120 MB, 40 us on a
// wide chip; runs only when a calibration changes. Cells are decided in float64 because float32 has
// steps of 4 um at 50 m and moves points that lie on an edge; chips with few float64 units take about
// 0.3 ms for it.
#include "common.cuh"

#define THREADS 256
#define CHUNK 2048  // keys of a block in a pass

struct ScatterMap {
    const double* cameras;  // (N, 24): P, s, M, t of q = P (pixel - s), q.xy *= q.z, ego = M q + t
    const double* axes;     // u of every column, v of every row, every depth
    const double* grid;     // lower x, y, z; steps x, y, z
    int bins, rows, cols, nx, ny, nz, round_down;  // round_down: floor, otherwise trunc
    int points, blocks;                            // blocks: chunks of points
    int *keys, *other_keys, *ids, *other_ids;      // (points,) each
    int* digits;                                   // (256, blocks)
    u64* status;                                   // zeroed, one word a chunk of every scan
    int* tickets;                                  // zeroed, one a scan
    int *ranks_depth, *ranks_feat, *ranks_bev, *starts, *lengths;
    int* counts;  // zeroed: points, intervals
};

__device__ __forceinline__ double linear(const double* m, double x, double y, double z) {
    return __dadd_rn(__dadd_rn(__dmul_rn(m[0], x), __dmul_rn(m[1], y)), __dmul_rn(m[2], z));
}

extern "C" __global__ void __launch_bounds__(THREADS) project_points(const ScatterMap m) {
    begin_dependent();
    const int count[3] = {m.nx, m.ny, m.nz};
    const int cells = m.nx * m.ny * m.nz;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < m.points; i += gridDim.x * THREADS) {
        const int u = i % m.cols, v = i / m.cols % m.rows, d = i / (m.cols * m.rows) % m.bins;
        const double* c = m.cameras + static_cast<u64>(i / (m.cols * m.rows * m.bins)) * 24;
        const double x = __dsub_rn(m.axes[u], c[9]), y = __dsub_rn(m.axes[m.cols + v], c[10]);
        const double z = __dsub_rn(m.axes[m.cols + m.rows + d], c[11]);
        const double qz = linear(c + 6, x, y, z);
        const double qx = __dmul_rn(linear(c, x, y, z), qz), qy = __dmul_rn(linear(c + 3, x, y, z), qz);
        bool inside = true;
        int cell[3];
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            const double at = __dadd_rn(linear(c + 12 + 3 * axis, qx, qy, qz), c[21 + axis]);
            const double q = __ddiv_rn(__dsub_rn(at, m.grid[axis]), m.grid[3 + axis]);
            const bool in = (m.round_down ? q >= 0. : q > -1.) && q < count[axis];  // false for NaN
            cell[axis] = in ? static_cast<int>(q) : 0;
            inside &= in;
        }
        m.keys[i] = inside ? (cell[2] * m.ny + cell[1]) * m.nx + cell[0] : cells;
    }
}

// ---- sums over blocks -------------------------------------------------------------------------------

// Next chunk for the whole block, in order, so that every earlier chunk is already running.
__device__ __forceinline__ int next_chunk(int* ticket) {
    __shared__ int shared_chunk;
    if (threadIdx.x == 0) shared_chunk = atomicAdd(ticket, 1);
    __syncthreads();
    return shared_chunk;
}

// What all chunks before this one add up to; `total` is this one's. A word of `status` starts at zero
// and holds state and value: 1, the chunk's own total; 2, everything up to it. A warp looks back over
// 32 words at a time until it meets a 2.
__device__ __forceinline__ int sum_of_chunks_before(u64* status, int chunk, int total) {
    __shared__ int shared_prefix;
    if (threadIdx.x < 32) {
        volatile u64* words = status;
        const int lane = threadIdx.x;
        int prefix = 0;
        if (chunk > 0) {
            if (lane == 0) words[chunk] = 1ull << 32 | static_cast<u32>(total);
            for (int nearest = chunk - 1, done = 0; !done; nearest -= 32) {
                const int at = nearest - lane;
                u64 word = 2ull << 32;  // before the first chunk: a prefix of zero
                if (at >= 0)
                    do {
                        SPIN_YIELD();
                        word = words[at];
                    } while (!(word >> 32));
                const u32 whole = __ballot_sync(0xffffffffu, (word >> 32) == 2);
                const int last = whole ? __ffs(whole) - 1 : 31;
                int value = lane <= last ? static_cast<int>(static_cast<u32>(word)) : 0;
                for (int d = 16; d; d /= 2) value += __shfl_xor_sync(0xffffffffu, value, d);
                prefix += value;
                done = whole != 0;
            }
        }
        if (lane == 0) {
            words[chunk] = 2ull << 32 | static_cast<u32>(prefix + total);
            shared_prefix = prefix;
        }
    }
    __syncthreads();
    return shared_prefix;
}

// ---- stable sort by 8 bits --------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS) count_digits(const ScatterMap m, const int pass) {
    begin_dependent();
    __shared__ int shared_count[256];
    const int* keys = pass & 1 ? m.other_keys : m.keys;
    shared_count[threadIdx.x] = 0;
    __syncthreads();
    const int begin = blockIdx.x * CHUNK, end = min(begin + CHUNK, m.points);
    for (int i = begin + threadIdx.x; i < end; i += THREADS) atomicAdd(shared_count + (keys[i] >> (8 * pass) & 255), 1);
    __syncthreads();
    m.digits[threadIdx.x * m.blocks + blockIdx.x] = shared_count[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(THREADS) scan_digits(const ScatterMap m, const int pass) {
    begin_dependent();
    const int chunk = next_chunk(m.tickets + pass);
    const int i = chunk * THREADS + threadIdx.x, size = 256 * m.blocks;
    int total;
    const int before = block_exclusive_sum<THREADS>(i < size ? m.digits[i] : 0, &total);
    const int prefix = sum_of_chunks_before(m.status + static_cast<u64>(pass) * m.blocks, chunk, total);
    if (i < size) m.digits[i] = prefix + before;
}

extern "C" __global__ void __launch_bounds__(THREADS) scatter_digits(const ScatterMap m, const int pass) {
    begin_dependent();
    __shared__ int shared_next[256];
    __shared__ int shared_warp[THREADS / 32 * 256];
    const int* keys = pass & 1 ? m.other_keys : m.keys;
    const int* ids = pass & 1 ? m.other_ids : m.ids;
    int* to_keys = pass & 1 ? m.keys : m.other_keys;
    int* to_ids = pass & 1 ? m.ids : m.other_ids;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    shared_next[threadIdx.x] = m.digits[threadIdx.x * m.blocks + blockIdx.x];
    for (int round = 0; round < CHUNK; round += THREADS) {
        const int i = blockIdx.x * CHUNK + round + threadIdx.x;
        const bool valid = i < m.points;
        const int key = valid ? keys[i] : 0, digit = valid ? key >> (8 * pass) & 255 : 256;
#pragma unroll
        for (int w = 0; w < THREADS / 32; ++w) shared_warp[w * 256 + threadIdx.x] = 0;
        __syncthreads();
        const u32 same = __match_any_sync(0xffffffffu, digit);
        const int rank = __popc(same & ((1u << lane) - 1u));
        if (valid && rank == 0) shared_warp[warp * 256 + digit] = __popc(same);
        __syncthreads();
        int next = shared_next[threadIdx.x];  // this thread stands for a digit here
#pragma unroll
        for (int w = 0; w < THREADS / 32; ++w) {
            const int count = shared_warp[w * 256 + threadIdx.x];
            shared_warp[w * 256 + threadIdx.x] = next;
            next += count;
        }
        shared_next[threadIdx.x] = next;
        __syncthreads();
        if (valid) {
            const int to = shared_warp[warp * 256 + digit] + rank;
            to_keys[to] = key;
            to_ids[to] = pass ? ids[i] : i;
        }
        __syncthreads();  // before the next round clears the counts
    }
}

// ---- intervals --------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS) write_map(const ScatterMap m, const int passes) {
    begin_dependent();
    const int* keys = passes & 1 ? m.other_keys : m.keys;
    const int* ids = passes & 1 ? m.other_ids : m.ids;
    const int cells = m.nx * m.ny * m.nz, pixels = m.rows * m.cols;
    const int chunk = next_chunk(m.tickets + passes);
    const int i = chunk * THREADS + threadIdx.x;
    const int key = i < m.points ? keys[i] : cells;
    const bool valid = key < cells, starts = valid && (i == 0 || keys[i - 1] != key);
    int total;
    const int before = block_exclusive_sum<THREADS>(starts, &total);
    u64* status = m.status + static_cast<u64>(passes) * m.blocks;
    const int interval = before + sum_of_chunks_before(status, chunk, total);
    if (!valid) return;
    if (starts) m.starts[interval] = i;
    const int id = ids[i];
    m.ranks_depth[i] = id;
    m.ranks_bev[i] = key;
    m.ranks_feat[i] = id / (m.bins * pixels) * pixels + id % pixels;
    if (i + 1 == m.points || keys[i + 1] == cells) {  // the last point that counts
        m.counts[0] = i + 1;
        m.counts[1] = interval + (starts ? 1 : 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) write_lengths(const ScatterMap m) {
    begin_dependent();
    const int points = m.counts[0], intervals = m.counts[1];
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < intervals; i += gridDim.x * THREADS)
        m.lengths[i] = (i + 1 < intervals ? m.starts[i + 1] : points) - m.starts[i];
}
