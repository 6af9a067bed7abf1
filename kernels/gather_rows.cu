// Copies rows by their numbers: out[i] = rows[numbers[i]], in words of 16 bytes.
//
// Training gathers the neighbours of every row this way, 27 to a row and most of them 32 to 128 bytes
// wide. The gather of torch gives each such row a block of its own, which takes most of a training
// step; here a thread has a word, so a warp writes 512 bytes in a row however wide rows are.
//
// Estimate: one read of the numbers and one write of the result; rows are read from L2, where
// neighbours share them. Words of four batches are in flight per thread.
#include "common.cuh"

#ifndef NUMBER  // int or long long
#define NUMBER int
#endif
#define THREADS 256
#define BATCHES 4

extern "C" __global__ void __launch_bounds__(THREADS)
    gather_rows(const float4* rows, const NUMBER* numbers, float4* out, long long count, int words) {
    begin_dependent();
    const long long total = count * words;
    const long long step = static_cast<long long>(gridDim.x) * THREADS;
    for (long long first = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; first < total;
         first += step * BATCHES) {
        float4 held[BATCHES];
#pragma unroll
        for (int b = 0; b < BATCHES; ++b) {
            const long long at = first + b * step;
            if (at >= total) continue;
            // Division by a 32-bit number is several times cheaper where the dividend has 32 bits.
            const long long row =
                at >> 31 ? at / words : static_cast<u32>(at) / static_cast<u32>(words);
            const int word = static_cast<int>(at - row * words);
            held[b] = rows[static_cast<long long>(numbers[row]) * words + word];
        }
#pragma unroll
        for (int b = 0; b < BATCHES; ++b) {
            const long long at = first + b * step;
            if (at < total) out[at] = held[b];
        }
    }
}
