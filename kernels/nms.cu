// From regression outputs of the chosen rows to the boxes of a frame: decode, check, suppress.
//
// One block a head. Boxes are compared pair by pair, best first, by rotated bird's-eye-view IoU: a
// warp tests 32 pairs for touching circles, queues those that pass and works out the IoU of 32 queued
// pairs at a time, so that no lane idles over pairs that lie apart. Bits of a matrix in shared memory
// say which box would suppress which; one warp then walks the boxes and keeps the greedy choice.
//
// Decoding and geometry are the formulas of core/reference/decode.py and nms.py, rounded after each
// operation as there.
#include "heads.cuh"

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32, kWords = kCandidates / 32, kQueue = 64;
static_assert(kThreads == kCandidates, "one thread decodes each candidate");

struct Suppression {
    const float* outputs;   // (heads, kCandidates, kOutputs)
    const int* coords;      // (rows, 3) z, y, x
    const int* chosen;      // (heads, kCandidates) rows, best first
    const int* label;
    const float* score;
    HeadStatus* status;     // (heads)
    float* boxes;           // (heads, max_boxes, 9)
    float* box_score;       // (heads, max_boxes)
    int* box_label;
    int max_boxes;
    float iou, stride, max_size, max_speed;
    float origin[2], step[2], low[3], high[3];
};

// A float that is rounded after each operation, as torch does: never part of a fused product and sum.
struct Real {
    float v;
};
__device__ __forceinline__ Real operator+(Real a, Real b) { return {__fadd_rn(a.v, b.v)}; }
__device__ __forceinline__ Real operator-(Real a, Real b) { return {__fsub_rn(a.v, b.v)}; }
__device__ __forceinline__ Real operator-(Real a) { return {-a.v}; }
__device__ __forceinline__ Real operator*(Real a, Real b) { return {__fmul_rn(a.v, b.v)}; }
__device__ __forceinline__ Real operator/(Real a, Real b) { return {__fdiv_rn(a.v, b.v)}; }
__device__ __forceinline__ Real least(Real a, Real b) { return {fminf(a.v, b.v)}; }
__device__ __forceinline__ Real greatest(Real a, Real b) { return {fmaxf(a.v, b.v)}; }
__device__ __forceinline__ Real clamped(Real v, Real low, Real high) { return least(greatest(v, low), high); }
__device__ __forceinline__ Real halved(Real a) { return {__fmul_rn(a.v, 0.5f)}; }

// ---- decode -------------------------------------------------------------------------------------

struct Box {
    float v[9];  // x, y, z, length, width, height, yaw, vx, vy
};

__device__ __forceinline__ Real centre(const Suppression& s, int axis, int cell, float offset) {
    return (Real{static_cast<float>(cell)} + Real{offset}) * Real{s.stride} * Real{s.step[axis]} + Real{s.origin[axis]};
}

__device__ Box decoded(const Suppression& s, int candidate) {
    const float* out = s.outputs + candidate * kOutputs;
    const int* cell = s.coords + s.chosen[candidate] * 3LL;
    Box box;
    box.v[0] = centre(s, 0, cell[2], out[0]).v;
    box.v[1] = centre(s, 1, cell[1], out[1]).v;
    box.v[2] = out[2];
#pragma unroll
    for (int i = 0; i < 3; ++i) box.v[3 + i] = expf(out[3 + i]);
    box.v[6] = atan2f(out[7], out[6]);
    box.v[7] = out[8], box.v[8] = out[9];
    return box;
}

// Counts a box that cannot be published under the first reason that applies.
__device__ bool is_usable(const Suppression& s, const Box& box, HeadStatus& status) {
    bool finite = true, plausible = true, inside = true;
#pragma unroll
    for (int i = 0; i < 9; ++i) finite = finite && isfinite(box.v[i]);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        plausible = plausible && box.v[3 + i] > 0.f && box.v[3 + i] <= s.max_size;
        inside = inside && box.v[i] >= s.low[i] && box.v[i] <= s.high[i];
    }
    const Real vx = {box.v[7]}, vy = {box.v[8]};
    plausible = plausible && __fsqrt_rn((vx * vx + vy * vy).v) <= s.max_speed;
    if (!finite)
        atomicAdd(&status.non_finite_boxes, 1);
    else if (!plausible)
        atomicAdd(&status.implausible_boxes, 1);
    else if (!inside)
        atomicAdd(&status.out_of_range_boxes, 1);
    return finite && plausible && inside;
}

// ---- rotated IoU --------------------------------------------------------------------------------

struct Footprint {
    float x, y, length, width, yaw, cos, sin, radius;
};

// The mean of clamp(y, -q, q) for y running evenly from one value to the other.
__device__ Real clamped_mean(Real start, Real end, Real q) {
    const Real zero = {0.f}, low = least(start, end), high = greatest(start, end), span = high - low;
    const Real below = least(greatest(-q - low, zero), span), above = least(greatest(high - q, zero), span);
    const Real middle = halved(clamped(low, -q, q) + clamped(high, -q, q));
    const Real total = q * (above - below) + middle * (span - below - above);
    return span.v > 0.f ? total / span : middle;
}

// The ground area that two boxes share, in the frame of the first.
__device__ Real shared_area(const Footprint& a, const Footprint& b) {
    const Real dx = Real{b.x} - Real{a.x}, dy = Real{b.y} - Real{a.y}, turn = Real{b.yaw} - Real{a.yaw};
    const Real x = Real{a.cos} * dx + Real{a.sin} * dy, y = Real{a.cos} * dy - Real{a.sin} * dx;
    const Real cos = {cosf(turn.v)}, sin = {sinf(turn.v)};
    const Real half_length = halved(Real{b.length}), half_width = halved(Real{b.width});
    const Real p = halved(Real{a.length}), q = halved(Real{a.width});
    Real corner_x[4], corner_y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // front left, rear left, rear right, front right
        const Real along = i == 0 || i == 3 ? half_length : -half_length, across = i < 2 ? half_width : -half_width;
        corner_x[i] = x + along * cos - across * sin;
        corner_y[i] = y + along * sin + across * cos;
    }
    Real area = {0.f};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Real x0 = corner_x[i], y0 = corner_y[i], x1 = corner_x[(i + 1) & 3], y1 = corner_y[(i + 1) & 3];
        const Real run = x1 - x0, slope = (y1 - y0) / Real{run.v == 0.f ? 1.f : run.v};
        const Real x0_in = clamped(x0, -p, p), x1_in = clamped(x1, -p, p);
        const Real y0_in = y0 + (x0_in - x0) * slope, y1_in = y1 + (x1_in - x1) * slope;
        area = area + (x1_in - x0_in) * clamped_mean(y0_in, y1_in, q);
    }
    return greatest(-area, Real{0.f});
}

__device__ float iou(const Footprint& a, const Footprint& b) {
    const Real area_a = Real{a.length} * Real{a.width}, area_b = Real{b.length} * Real{b.width};
    const Real shared = least(shared_area(a, b), least(area_a, area_b)), both = area_a + area_b - shared;
    return both.v > 0.f ? (shared / both).v : 0.f;
}

// Only boxes whose circumscribed circles meet can overlap.
__device__ __forceinline__ bool are_near(const Footprint& a, const Footprint& b) {
    const Real dx = Real{a.x} - Real{b.x}, dy = Real{a.y} - Real{b.y}, reach = Real{a.radius} + Real{b.radius};
    return (dx * dx + dy * dy).v <= (reach * reach).v;
}

// ---- suppression --------------------------------------------------------------------------------

struct Shared {
    Footprint box[kCandidates];
    u32 hides[kCandidates][kWords];  // bit j of row i: i, which is better, overlaps j
    int candidate[kCandidates];      // of each usable box, best first
    u32 queue[kWarps][kQueue];       // pairs to work out, i << 16 | j
    int kept[kCandidates];
};
static_assert(sizeof(Shared) == 57344, "core/gpu/heads.py gives a block as much");

__device__ __forceinline__ void compare(Shared& shared, u32 pair, float limit) {
    const int i = pair >> 16, j = pair & 0xffffu;
    if (iou(shared.box[i], shared.box[j]) > limit) atomicOr(&shared.hides[i][j / 32], 1u << (j & 31));
}

__device__ void compare_all(Shared& shared, int count, float limit) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32* queue = shared.queue[warp];
    int queued = 0;
    for (int i = warp; i < count; i += kWarps) {
        for (int word = i / 32; word * 32 < count; ++word) {
            const int j = word * 32 + lane;
            const bool near = j > i && j < count && are_near(shared.box[i], shared.box[j]);
            const u32 all = __ballot_sync(0xffffffffu, near);
            if (near) queue[queued + __popc(all & ((1u << lane) - 1))] = static_cast<u32>(i) << 16 | j;
            queued += __popc(all);
            __syncwarp();
            if (queued >= 32) {
                queued -= 32;
                compare(shared, queue[queued + lane], limit);
            }
            __syncwarp();  // what was read may be written again
        }
    }
    if (lane < queued) compare(shared, queue[lane], limit);
}

// One warp: the best box that no kept box hides, again and again. Lane w holds word w of the hidden.
__device__ int keep_greedily(Shared& shared, int count, int max_boxes) {
    const int lane = threadIdx.x;
    u32 hidden = 0;
    int kept = 0;
    for (int word = 0; word * 32 < count && kept < max_boxes; ++word) {
        const int size = min(count - word * 32, 32);
        u32 open = size == 32 ? 0xffffffffu : (1u << size) - 1;  // not yet visited
        for (u32 alive; (alive = open & ~__shfl_sync(0xffffffffu, hidden, word)) && kept < max_boxes;) {
            const int bit = __ffs(alive) - 1, box = word * 32 + bit;
            if (lane == 0) shared.kept[kept] = box;
            ++kept;
            if (lane < kWords) hidden |= shared.hides[box][lane];
            open &= bit == 31 ? 0u : 0xffffffffu << (bit + 1);
        }
    }
    return kept;
}

extern "C" __global__ void __launch_bounds__(kThreads) suppress_boxes(const __grid_constant__ Suppression s) {
    begin_dependent();
    SHARED_DYNAMIC(float4, memory);
    __shared__ int kept;
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    HeadStatus& status = s.status[blockIdx.x];
    const int first = blockIdx.x * kCandidates;
    Box box;
    bool usable = false;
    if (threadIdx.x < status.chosen) {
        box = decoded(s, first + threadIdx.x);
        usable = is_usable(s, box, status);
    }
    int count;
    const int at = block_exclusive_sum<kThreads>(usable, &count);
    if (usable) {
        shared.candidate[at] = first + threadIdx.x;
        const float length = box.v[3], width = box.v[4], yaw = box.v[6];
        const Real diagonal = {hypotf(length, width)};
        shared.box[at] = {box.v[0], box.v[1], length, width, yaw, cosf(yaw), sinf(yaw), halved(diagonal).v};
    }
    for (int i = threadIdx.x; i < kCandidates * kWords; i += kThreads) shared.hides[i / kWords][i % kWords] = 0;
    __syncthreads();
    if (s.iou < 1.f) compare_all(shared, count, s.iou);  // no IoU is above 1
    __syncthreads();
    if (threadIdx.x < 32) {
        const int all = keep_greedily(shared, count, s.max_boxes);
        if (threadIdx.x == 0) kept = status.kept = all;
    }
    __syncthreads();
    if (threadIdx.x >= kept) return;
    const int candidate = shared.candidate[shared.kept[threadIdx.x]], to = blockIdx.x * s.max_boxes + threadIdx.x;
    const Box result = decoded(s, candidate);
#pragma unroll
    for (int i = 0; i < 9; ++i) s.boxes[to * 9 + i] = result.v[i];
    s.box_score[to] = s.score[candidate];
    s.box_label[to] = s.label[candidate];
}
