// Kernels that break one rule each, and that a CPU without these checks would run without a word.
#include "common.cuh"

extern "C" __global__ void barrier_in_half_a_block(int* out) {
    if (threadIdx.x < blockDim.x / 2) __syncthreads();
    out[threadIdx.x] = 1;
}

extern "C" __global__ void two_barriers(int* out) {
    if (threadIdx.x & 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}

extern "C" __global__ void shuffle_with_returned_lane(int* out) {
    if (threadIdx.x == 5) return;
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}

extern "C" __global__ void shuffle_from_unnamed_lane(int* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
}

extern "C" __global__ void masks_disagree(int* out) {
    const u32 mask = threadIdx.x < 16 ? 0xffffffffu : 0xffff0000u;
    out[threadIdx.x] = __shfl_xor_sync(mask, 1, 1);
}

extern "C" __global__ void warp_waits_for_block(int* out) {
    if (threadIdx.x & 1) __syncthreads();
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}

extern "C" __global__ void wait_for_a_later_block(int* flags) {
    volatile int* words = flags;
    if (blockIdx.x == 0)
        while (!words[1]) SPIN_YIELD();
    words[blockIdx.x] = 1;
}

extern "C" __global__ void endless_loop(int* out) {
    volatile int* words = out;
    while (!words[0]) {
    }
}

extern "C" __global__ void copy_without_wait(const float* in, float* out) {
    SHARED_DYNAMIC(float, shared);
    copy16_async(shared + threadIdx.x * 4, in + threadIdx.x * 4, true);
    copy_commit();
    out[threadIdx.x] = shared[threadIdx.x * 4];
}

extern "C" __global__ void copy_beyond_shared(const float* in) {
    SHARED_DYNAMIC(float, shared);
    copy16_async(shared + 4 * blockDim.x, in, true);
}

extern "C" __global__ void touch_far_away(int* out) { out[1ll << 40] = 1; }

// With more than a warp, the last threads read what others may not have written yet.
extern "C" __global__ void reverse_without_barrier(const int* in, int* out) {
    __shared__ int values[256];
    values[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void read_fresh_shared(float* out) {
    SHARED_DYNAMIC(float, shared);
    __shared__ int counter;
    out[0] = shared[3];
    out[1] = counter == 0;
}

// One past the end of an array.
extern "C" __global__ void overrun_static(int* out) {
    __shared__ int values[33];
    int* at = values;
    at[threadIdx.x + 1] = 1;
    out[0] = at[0];
}
extern "C" __global__ void overrun_dynamic(int* out) {
    SHARED_DYNAMIC(int, values);
    values[threadIdx.x + 1] = 1;
    out[0] = values[0];
}
extern "C" __global__ void overrun_global(int* out) { out[threadIdx.x + 1] = 1; }
