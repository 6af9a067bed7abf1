// Kernels with a data race each, that one line orders where `right` is set.
#include "common.cuh"

extern "C" __global__ void block_barrier(int* out, int right) {
    __shared__ int values[64];
    values[threadIdx.x] = threadIdx.x;
    if (right) __syncthreads();
    out[threadIdx.x] = values[63 - threadIdx.x];
}

// The same place is used again: the second barrier keeps the last reader from the next writer.
extern "C" __global__ void place_used_again(int* out, int right) {
    __shared__ int value;
    int sum = 0;
    for (int i = 0; i < 3; ++i) {
        if (threadIdx.x == 0) value = i;
        __syncthreads();
        sum += value;
        if (right) __syncthreads();
    }
    out[threadIdx.x] = sum;
}

// Orders lanes of a warp, and no others.
extern "C" __global__ void warp_barrier(int* out, int right) {
    __shared__ int values[64];
    values[threadIdx.x] = threadIdx.x;
    __syncwarp();
    out[threadIdx.x] = values[threadIdx.x ^ (right ? 1 : 32)];
}

extern "C" __global__ void lanes_without_barrier(int* out, int right) {
    SHARED_DYNAMIC(int, values);
    values[threadIdx.x] = threadIdx.x;
    if (right) __syncwarp();
    out[threadIdx.x] = values[threadIdx.x ^ 1];
}

// Votes exchange registers; memory is another matter.
extern "C" __global__ void vote_between_lanes(int* out, int right) {
    __shared__ int values[64];
    values[threadIdx.x] = threadIdx.x;
    const u32 all = __ballot_sync(0xffffffffu, threadIdx.x >= 0);
    if (right) __syncwarp(all);
    out[threadIdx.x] = values[threadIdx.x ^ 1];
}

extern "C" __global__ void atomic_and_plain(int* out, int right) {
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, 1);
    if (right) __syncthreads();
    out[threadIdx.x] = sum;
}

// Each writes bytes of its own; neighbours share words.
extern "C" __global__ void bytes_of_a_word(unsigned char* out, int right) {
    out[blockIdx.x * blockDim.x + threadIdx.x + (right ? 0u : threadIdx.x & 1u)] = 1;
}

extern "C" __global__ void blocks_share_a_word(int* out, int right) {
    if (right)
        atomicAdd(out, 1);
    else if (threadIdx.x == 0)
        out[0] += 1;
}

extern "C" __global__ void flag_is_volatile(int* out, int right) {
    volatile int* flag = out;
    if (right)
        flag[0] = 1;
    else
        out[0] = 1;
    if (flag[0]) out[1 + blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

// The last block reads what all have written.
extern "C" __global__ void last_block(int* out, int right) {
    __shared__ bool last;
    int* count = out;
    out[2 + blockIdx.x * blockDim.x + threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x == 0) {
        if (right) __threadfence();
        last = atomicAdd(count, 1) + 1 == gridDim.x;
        __threadfence();
    }
    __syncthreads();
    if (!last || threadIdx.x) return;
    int sum = 0;
    for (u32 i = 0; i < gridDim.x * blockDim.x; ++i) sum += out[2 + i];
    out[1] = sum;
}

// The fence of one thread says nothing of what the others of its block wrote.
extern "C" __global__ void fence_of_one_thread(int* out, int right) {
    out[1 + blockIdx.x * blockDim.x + threadIdx.x] = 1;
    if (right) __syncthreads();
    if (threadIdx.x) return;
    __threadfence();
    if (atomicAdd(out, 1) == 0) return;
    __threadfence();
    out[1 + blockDim.x] = out[2];
}

extern "C" __global__ void copy_without_barrier(const float* in, float* out, int right) {
    SHARED_DYNAMIC(float4, values);
    copy16_async(values + threadIdx.x, in + 4 * threadIdx.x, true);
    copy_commit();
    copy_wait<0>();
    if (right) __syncthreads();
    out[threadIdx.x] = values[63 - threadIdx.x].x;
}

// A barrier orders threads, not copies on their way.
extern "C" __global__ void copy_on_its_way(const float* in, float* out, int right) {
    SHARED_DYNAMIC(float4, values);
    copy16_async(values + threadIdx.x, in + 4 * threadIdx.x, true);
    copy_commit();
    if (right) copy_wait<0>();
    __syncthreads();
    out[threadIdx.x] = values[63 - threadIdx.x].x;
    copy_wait<0>();
}

extern "C" __global__ void constant_that_is_written(int* out, int right) {
    out[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[64 + threadIdx.x] = right ? out[63 - threadIdx.x] : __ldg(out + 63 - threadIdx.x);
}
