// Resizes the images of every camera to the network input by averaging areas, and crops them.
//
// Bit for bit what OpenCV's INTER_AREA gives on a CPU without fused multiply-add: along a row the
// pixels under a result are weighed and added in ascending order, then the rows likewise, in float32,
// product and sum rounded apart; the result is rounded to the nearest even. Where both factors are
// integers the weights are 1 and the sum is scaled at the end, and the average of 2 x 2 pixels rounds
// halves up.
//
// sources  (N) where the pixels of each camera lie
// columns  (N, cols), lines (N, rows): what each result takes of an axis; count 0: black
// present  (N): a camera with 0 is black
// out      (N, rows, cols, 3) bytes, written whole
//
// Estimate: six images of 1600 x 582 rows and columns in use are 17 MB, read once from memory: 6 us on
// a wide chip; 11 pixels of 3 bytes a result, each a load of its own from L1, are most of it.
#include "common.cuh"

typedef unsigned char u8;

constexpr int THREADS = 256;

struct Source {
    int first;    // byte of the first pixel, in units of 16
    int stride;   // bytes of a row
    int half_up;  // round halves up
    float scale;  // multiplies the sum
};

struct Span {
    int first, count;          // pixels of the image
    float head, middle, tail;  // weight of the first, of those between, of the last one
};

struct Images {
    const u8* pixels;
    const Source* sources;
    const Span* columns;
    const Span* lines;
    const float* present;
    u8* out;
    int rows, cols, results;  // results: N rows cols
};

__device__ __forceinline__ float weight(const Span& span, int k) {
    return k == 0 ? span.head : k == span.count - 1 ? span.tail : span.middle;
}

__device__ __forceinline__ float add_product(float a, float b, float sum) {
    return __fadd_rn(sum, __fmul_rn(a, b));
}

extern "C" __global__ void __launch_bounds__(THREADS) fit_images(const Images p) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= p.results) return;
    const int col = i % p.cols, row = i / p.cols % p.rows, camera = i / (p.cols * p.rows);
    const Span x = p.columns[camera * p.cols + col], y = p.lines[camera * p.rows + row];
    float sum[3] = {0.f, 0.f, 0.f};
    const Source source = p.sources[camera];
    if (p.present[camera] != 0.f && x.count) {
        const u8* line = p.pixels + 16ull * source.first +
                                    static_cast<u64>(y.first) * source.stride + 3 * x.first;
        for (int j = 0; j < y.count; ++j, line += source.stride) {
            float across[3] = {0.f, 0.f, 0.f};
            for (int k = 0; k < x.count; ++k) {
                const float share = weight(x, k);
#pragma unroll
                for (int c = 0; c < 3; ++c) across[c] = add_product(line[3 * k + c], share, across[c]);
            }
            const float share = weight(y, j);
#pragma unroll
            for (int c = 0; c < 3; ++c) sum[c] = add_product(across[c], share, sum[c]);
        }
    }
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const float value = __fmul_rn(sum[c], source.scale);
        const float rounded = source.half_up ? floorf(__fadd_rn(value, 0.5f)) : rintf(value);
        p.out[3ull * i + c] = static_cast<u8>(fminf(rounded, 255.f));
    }
}
