// Which heat values become boxes: those above the threshold of their class, the best top_k of a head.
//
// A value is decided by its float32 score, as the reference does. What passes is kept as a key of 64
// bits that ascends where the score falls, then by class, then by cell. Keys of a head are all
// different, so the order in which they arrive does not matter and the order in which they leave is
// fixed. There is room for every row of every class; nothing can be lost here.
//
// With `row_of` a value must also be the greatest of its class among the rows in the eight cells
// around; of equal ones the first cell stays. A cell without a row holds whatever an earlier frame
// left there: its row is asked whether it lies in that cell, so nothing is cleared between frames.
#include "heads.cuh"

constexpr int kThreads = 256;
constexpr int kSorters = 512;
constexpr int kDigits = 256;

struct Selection {
    const float* heat;      // (rows, classes)
    const int* coords;      // (rows, 3) z, y, x
    const int* count;       // rows
    const float* limit;     // (classes) a score must be above
    const int* head;        // (classes) of which head
    const int* first;       // (heads) first class of each
    u64* keys;              // (classes, row capacity); those of a head begin at its first class
    int* rows;              // as keys: the row of each
    HeadStatus* status;     // (heads)
    int* chosen;            // (heads, kCandidates) rows, best first
    int* label;             // class among all heads of each
    float* score;
    int* row_of;            // (cells) row of each; null: overlapping boxes are suppressed later
    int row_capacity, classes, nx, cells, top_k;
};

// Writes down the row of each active cell.
extern "C" __global__ void __launch_bounds__(kThreads) mark_cells(const __grid_constant__ Selection s) {
    begin_dependent();
    const int rows = min(*s.count, s.row_capacity);
    for (int row = blockIdx.x * kThreads + threadIdx.x; row < rows; row += gridDim.x * kThreads)
        s.row_of[s.coords[row * 3LL + 1] * s.nx + s.coords[row * 3LL + 2]] = row;
}

__device__ bool is_peak(const Selection& s, int rows, int row, int label, float heat) {
    const int y = s.coords[row * 3LL + 1], x = s.coords[row * 3LL + 2], ny = s.cells / s.nx;
    for (int i = 0; i < 9; ++i) {
        const int other_y = y + i / 3 - 1, other_x = x + i % 3 - 1;
        if (i == 4 || other_y < 0 || other_y >= ny || other_x < 0 || other_x >= s.nx) continue;
        const int other = s.row_of[other_y * s.nx + other_x];
        if (static_cast<u32>(other) >= static_cast<u32>(rows)) continue;
        if (s.coords[other * 3LL + 1] != other_y || s.coords[other * 3LL + 2] != other_x) continue;
        const float theirs = s.heat[static_cast<long long>(other) * s.classes + label];
        if (isfinite(theirs) && (theirs > heat || (theirs == heat && i < 4))) return false;
    }
    return true;
}

// Collects the candidates of all heads, in any order.
extern "C" __global__ void __launch_bounds__(kThreads) collect_candidates(const __grid_constant__ Selection s) {
    begin_dependent();
    const int count = min(*s.count, s.row_capacity), values = count * s.classes;
    for (int i = blockIdx.x * kThreads + threadIdx.x; i < values; i += gridDim.x * kThreads) {
        const int row = i / s.classes, label = i % s.classes, head = s.head[label];
        const float heat = s.heat[i];
        if (!isfinite(heat)) {
            atomicAdd(&s.status[head].non_finite_heat, 1);
            continue;
        }
        const float score = __fdiv_rn(1.f, __fadd_rn(1.f, expf(-heat)));
        if (!(score > s.limit[label])) continue;
        if (s.row_of && !is_peak(s, count, row, label, heat)) continue;
        const int cell = s.coords[row * 3LL + 1] * s.nx + s.coords[row * 3LL + 2];
        const u32 place = static_cast<u32>(label - s.first[head]) * s.cells + cell;
        const int at = atomicAdd(&s.status[head].candidates, 1);
        const long long slot = static_cast<long long>(s.first[head]) * s.row_capacity + at;
        s.keys[slot] = static_cast<u64>(~__float_as_uint(score)) << 32 | place;
        s.rows[slot] = row;
    }
}

// The greatest key among the `wanted` least of `count`, eight bits a round.
__device__ u64 last_of_least(const u64* keys, int count, int wanted) {
    __shared__ int digits[kDigits];
    __shared__ int chosen, before;
    u64 prefix = 0, known = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int d = threadIdx.x; d < kDigits; d += kSorters) digits[d] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += kSorters) {
            const u64 key = keys[i];
            if ((key & known) == prefix) atomicAdd(&digits[key >> shift & 255], 1);
        }
        __syncthreads();
        const int mine = threadIdx.x < kDigits ? digits[threadIdx.x] : 0;
        int total;
        const int less = block_exclusive_sum<kSorters>(mine, &total);
        if (less < wanted && wanted <= less + mine) chosen = threadIdx.x, before = less;
        __syncthreads();
        prefix |= static_cast<u64>(chosen) << shift;
        known |= 255ull << shift;
        wanted -= before;
        __syncthreads();  // digits, chosen and before are written again
    }
    return prefix;
}

// Sorts the best of each head, one block a head.
extern "C" __global__ void __launch_bounds__(kSorters) choose_candidates(const __grid_constant__ Selection s) {
    begin_dependent();
    __shared__ u64 key[kCandidates];
    __shared__ int row[kCandidates];
    __shared__ int taken;
    HeadStatus& status = s.status[blockIdx.x];
    const int found = status.candidates, count = min(found, s.top_k), first = s.first[blockIdx.x];
    const u64* keys = s.keys + static_cast<long long>(first) * s.row_capacity;
    const int* rows = s.rows + static_cast<long long>(first) * s.row_capacity;
    if (threadIdx.x == 0) taken = 0, status.chosen = count;
    const u64 last = found > count ? last_of_least(keys, found, count) : ~0ull;
    __syncthreads();
    for (int i = threadIdx.x; i < found; i += kSorters) {
        if (keys[i] > last) continue;
        const int at = atomicAdd(&taken, 1);
        key[at] = keys[i], row[at] = rows[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kSorters) {
        int rank = 0;
        for (int j = 0; j < count; ++j) rank += key[j] < key[i];
        const int at = blockIdx.x * kCandidates + rank;
        s.chosen[at] = row[i];
        s.score[at] = __uint_as_float(~static_cast<u32>(key[i] >> 32));
        s.label[at] = first + static_cast<int>(static_cast<u32>(key[i]) / s.cells);
    }
}
