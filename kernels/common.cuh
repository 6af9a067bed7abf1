// Shared by every kernel: integer types, asynchronous copies and the few raw instructions.
#pragma once
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef DRIVERT_CPU_SHIM  // the CPU shim of the tests brings its own of these
__device__ __forceinline__ u32 smem_address(const void* p) {
    return static_cast<u32>(__cvta_generic_to_shared(p));
}

// Copies 16 bytes global -> shared without passing through registers; zero-fills when !valid.
__device__ __forceinline__ void copy16_async(void* shared, const void* global, bool valid) {
#if __CUDA_ARCH__ >= 800
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(smem_address(shared)),
                 "l"(global), "r"(bytes));
#else
    *reinterpret_cast<float4*>(shared) =
        valid ? *reinterpret_cast<const float4*>(global) : make_float4(0.f, 0.f, 0.f, 0.f);
#endif
}
__device__ __forceinline__ void copy_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;\n" ::);
#endif
}
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING));
#endif
}
#define SPIN_YIELD()  // the shim runs another thread here
#endif

// The first statement of every kernel: lets the next kernel of the stream start its blocks, then
// waits until the one before is done and its results can be read. Both do nothing in a launch that
// is not dependent (core/cuda.py).
__device__ __forceinline__ void begin_dependent() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// Exclusive prefix sum over a block of THREADS threads; *total receives the sum of all.
template <int THREADS>
__device__ __forceinline__ int block_exclusive_sum(int value, int* total) {
    __shared__ int warp_sums[THREADS / 32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int inclusive = value;
    for (int d = 1; d < 32; d *= 2) {
        const int left = __shfl_up_sync(0xffffffffu, inclusive, d);
        if (lane >= d) inclusive += left;
    }
    if (lane == 31) warp_sums[warp] = inclusive;
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < THREADS / 32; ++w) {
        const int s = warp_sums[w];
        before += w < warp ? s : 0;
        all += s;
    }
    __syncthreads();  // warp_sums may be used again at once
    *total = all;
    return before + inclusive - value;
}

// What all chunks before this one add up to, each summed by a block of its own; `total` is this one's
// and below 2^63. Every block adds up the words before its own, so that none waits for a prefix, only
// for sums. Words start at zero. Blocks take chunks in the order of their index, in which the GPU
// starts them: every chunk waited for is already running.
template <int THREADS>
__device__ __forceinline__ u64 sum_before(u64* published, int chunk, u64 total) {
    __shared__ u64 warp_sums[THREADS / 32];
    constexpr u64 present = 1ull << 63;
    volatile u64* words = published;
    if (threadIdx.x == 0) words[chunk] = present | total;
    u64 sum = 0;
    for (int at = threadIdx.x; at < chunk; at += THREADS) {
        u64 word;
        do {
            SPIN_YIELD();
            word = words[at];
        } while (!(word & present));
        sum += word & ~present;
    }
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if ((threadIdx.x & 31) == 0) warp_sums[threadIdx.x >> 5] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < THREADS / 32; ++w) sum += warp_sums[w];
    __syncthreads();  // warp_sums may be used again at once
    return sum;
}

// ---- four floats at a time --------------------------------------------------------------------

__device__ __forceinline__ float4 add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ __forceinline__ float4 fma4(float a, float4 b, float4 c) {
    return make_float4(fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z), fmaf(a, b.w, c.w));
}
// As torch.relu: NaN stays NaN, so that a fault upstream is not hidden.
__device__ __forceinline__ float relu(float v) { return v < 0.f ? 0.f : v; }
__device__ __forceinline__ float4 relu4(float4 v) {
    return make_float4(relu(v.x), relu(v.y), relu(v.z), relu(v.w));
}
__device__ __forceinline__ float component(float4 v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

#ifndef SHARED_DYNAMIC
#define SHARED_DYNAMIC(type, name) extern __shared__ type name[]
#endif
