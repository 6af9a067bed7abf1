// What turns depth logits into weights of a softmax: per pixel the largest of them, and one over the
// sum of exp(logit - largest). The pooling kernels (LOGITS in pool.cuh) do the rest, so that the
// weights are never written:
//   weight[d] = exp(logit[d] - norms[pixel].x) * norms[pixel].y
//
// logits   (B, N, D, H, W) at any strides, floats or halves
// present  (N) or null: multiplies the weights of a camera; 0 takes it out
// norms    (B, N H W, 2) floats
//
// LANES neighbouring threads share a pixel: lane l takes the bins l, l + LANES ..., so where the bins
// of a pixel are neighbours in memory (channels last) a load is one sector or two. The bins are read
// twice, the second time from a cache. Estimate: six cameras of 16 x 44 pixels and 59 bins as halves
// are 0.5 MB and 34,000 threads of 2 x 8 loads, about 2 us, most of it the latency of the two rounds.
//
// Repeatable: each lane adds its bins in ascending order, lanes are added as a tree. NaN, an infinite
// logit or nothing but minus infinity make all weights of the pixel NaN, as in torch.
//
// DEPTHS: pool.cuh.
#include "pool.cuh"

struct Softmax {
    const void* logits;
    const float* present;
    float* norms;
    int bins, rows, cols, pixels;  // pixels: N H W
    int camera, bin, row, column;  // elements between neighbours
    u64 batch;
};

constexpr int LANES = 8, THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS) softmax_norms(const Softmax p) {
    begin_dependent();
    const int lane = threadIdx.x % LANES, pixel = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    const int known = min(pixel, p.pixels - 1);  // all lanes of a warp take part in the sums
    const int camera = known / (p.rows * p.cols), row = known / p.cols % p.rows, col = known % p.cols;
    const long long at = blockIdx.y * p.batch + static_cast<long long>(camera) * p.camera +
                         static_cast<long long>(row) * p.row + static_cast<long long>(col) * p.column;
    float most = __uint_as_float(0xff800000u);  // minus infinity
#pragma unroll 4
    for (int d = lane; d < p.bins; d += LANES)
        most = fmaxf(most, load_depth<DEPTHS>(p.logits, at + static_cast<long long>(d) * p.bin));
    for (int step = LANES / 2; step; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    float sum = 0.f;
#pragma unroll 4
    for (int d = lane; d < p.bins; d += LANES)
        sum += expf(load_depth<DEPTHS>(p.logits, at + static_cast<long long>(d) * p.bin) - most);
    for (int step = LANES / 2; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane || pixel >= p.pixels) return;
    float2* norms = reinterpret_cast<float2*>(p.norms) + static_cast<u64>(blockIdx.y) * p.pixels;
    norms[pixel] = make_float2(most, (p.present ? p.present[camera] : 1.f) / sum);
}
