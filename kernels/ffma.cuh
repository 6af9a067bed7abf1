// Products of a tile of rows with a slab of weights on the CUDA cores, exact FP32.
//
// A block multiplies TM rows by COUT channels, KC inputs at a time; each thread keeps an RPT x CPT
// corner of the tile in registers. Rows lie kRowStride floats apart in shared memory, weights as
// [input][channel], so a thread reads runs of four channels with one 16-byte load. The runs of a
// thread lie 4 * kLanesC channels apart and neighbouring lanes share a run, which makes every shared
// read conflict-free.
//
// Specialised by CIN, COUT, TM, KC, RPT and CPT.
#pragma once
#include "common.cuh"

constexpr int kLanesC = COUT / CPT < 8 ? COUT / CPT : 8;   // lanes of a warp along channels
constexpr int kLanesR = 32 / kLanesC;                      // and along rows
constexpr int kThreads = (COUT / CPT) * (TM / RPT);
constexpr int kWarpsC = COUT / CPT / kLanesC;
constexpr int kRuns = CPT / 4;
constexpr int kRowStride = KC + 4;                         // floats; keeps rows on different banks
constexpr int kStageA = TM * kRowStride, kStageB = KC * COUT;  // floats of a stage: rows and weights
constexpr int kCopiesA = TM * KC / 4 / kThreads, kCopiesB = KC * COUT / 4 / kThreads;  // of a thread
constexpr int kSlabs = CIN / KC;                           // slabs of a row
static_assert(CIN % KC == 0, "whole slabs");
static_assert(TM * KC / 4 % kThreads == 0 && KC * COUT / 4 % kThreads == 0, "copies are equal");
static_assert(KC % 4 == 0 && CPT % 4 == 0, "channels are read four at a time");
static_assert(kThreads % 32 == 0 && (COUT / CPT) % kLanesC == 0, "whole warps");

// Where the corner of this thread lies: rows row0 + i * kLanesR, channels channel0 + r * kLanesC * 4.
struct Corner {
    int lane_c, row0, channel0;

    __device__ __forceinline__ Corner() {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        lane_c = (lane >> 1) % kLanesC;
        row0 = warp / kWarpsC * (kLanesR * RPT) + lane / (2 * kLanesC) * 2 + (lane & 1);
        channel0 = warp % kWarpsC * (kLanesC * CPT) + lane_c * 4;
    }
};

// Asks for a slab of the rows of x whose numbers a loader has, -1 for zeros, and of its weights.
// x is a reference: read where it is used, as if written there, it compiles to the same code.
template <typename Loader>
__device__ __forceinline__ void copy_slab(const Loader& loader, const float* const& x, int stage) {
    constexpr int columns = KC / 4;
#pragma unroll
    for (int i = 0; i < kCopiesA; ++i) {
        const int e = threadIdx.x + i * kThreads, row = e / columns, column = e % columns * 4;
        const bool present = loader.source[i] >= 0;
        const long long from = static_cast<long long>(present ? loader.source[i] : 0) * CIN;
        copy16_async(loader.a + stage * kStageA + row * kRowStride + column, x + from + loader.slab * KC + column, present);
    }
#pragma unroll
    for (int i = 0; i < kCopiesB; ++i) {
        const int e = (threadIdx.x + i * kThreads) * 4;
        copy16_async(loader.b + stage * kStageB + e, loader.weight + loader.slab * kStageB + e, true);
    }
}

// acc += a[RPT rows][KC] * b[KC][CPT channels]
__device__ __forceinline__ void multiply(float (&acc)[RPT][CPT], const float* a, const float* b) {
#pragma unroll
    for (int k = 0; k < KC; k += 4) {
        float4 rows[RPT];
#pragma unroll
        for (int i = 0; i < RPT; ++i)
            rows[i] = *reinterpret_cast<const float4*>(a + i * kLanesR * kRowStride + k);
#pragma unroll
        for (int kk = 0; kk < 4; ++kk) {
            float4 run[kRuns];
#pragma unroll
            for (int r = 0; r < kRuns; ++r)
                run[r] = *reinterpret_cast<const float4*>(b + (k + kk) * COUT + r * kLanesC * 4);
#pragma unroll
            for (int i = 0; i < RPT; ++i) {
                const float v = component(rows[i], kk);
#pragma unroll
                for (int r = 0; r < kRuns; ++r) {
                    acc[i][r * 4 + 0] = fmaf(v, run[r].x, acc[i][r * 4 + 0]);
                    acc[i][r * 4 + 1] = fmaf(v, run[r].y, acc[i][r * 4 + 1]);
                    acc[i][r * 4 + 2] = fmaf(v, run[r].z, acc[i][r * 4 + 2]);
                    acc[i][r * 4 + 3] = fmaf(v, run[r].w, acc[i][r * 4 + 3]);
                }
            }
        }
    }
}
