// Bird's-eye view: adds the rows of the levels of stride 8, 16 and 32 that stand over each cell.
//
// Sums run over level, then z, ascending: the same order on every run, without a sort or an atomic.
// A cell of the coarser levels stands over one cell in two and in four on each axis.
//
// Specialised by HALF: rows are halves; sums are floats either way.
#include "features.cuh"
#include "levels.cuh"

struct Merge {
    const void* x[3];     // (rows of levels 4, 5, 6, channels)
    void* out;            // (rows of the bird's-eye union, channels)
    int channels4;
};

constexpr int kFirstLevel = 3, kUnion = 6;  // places in `levels`

// One warp a cell.
extern "C" __global__ void __launch_bounds__(256, 4) bev_merge(const Level* levels, const __grid_constant__ Merge m) {
    begin_dependent();
    const Level& bev = levels[kUnion];
    const int rows = rows_of(bev), lane = threadIdx.x & 31, warps = gridDim.x * 8;
    for (int row = blockIdx.x * 8 + (threadIdx.x >> 5); row < rows; row += warps) {
        const int y = bev.coords[row * 3LL + 1], x = bev.coords[row * 3LL + 2];
        for (int c = lane; c < m.channels4; c += 32) {
            float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
            for (int i = 0; i < 3; ++i) {
                const int scale = 1 << i;
                if ((y | x) & (scale - 1)) break;
                const Level& level = levels[kFirstLevel + i];
                for (int z = 0; z < level.nz; ++z) {
                    Window cell;
                    cell.load(level, z, y / scale, x / scale, 1, 1);
                    if (!(cell.bits() & 1u)) continue;
                    const int source = cell.row(0, 0);
                    if (source < level.row_capacity)
                        sum = add(sum, load_features(m.x[i], static_cast<long long>(source) * m.channels4 + c));
                }
            }
            store_features(m.out, static_cast<long long>(row) * m.channels4 + c, sum);
        }
    }
}
