// Turns the bytes of a PointCloud2 into points, as io/pointcloud.py does, bit for bit, and joins past sweeps.
//
// Rows are x, y, z, intensity, time lag (float32). Fields may have any type of PointField, any offset,
// either byte order; rows of the message may be padded. A point stays where all three coordinates are
// below LIMIT; of more than `capacity` points, rank r of n stays where some i has floor(i n / capacity) = r.
// What a point becomes depends on all that stay: intensities are clipped only where one is out of range,
// times count back from the stamp or from the newest. So it takes three passes, and one for what joins:
//   inspect_points  per chunk: points that are near enough to stay
//   place_points    coordinates, raw intensity and raw time in order; per chunk: their ranges
//   finish_points   intensity and time lag; per chunk: rows that are not the vehicle itself; the status
//   join_sweeps     those rows as columns for later frames; past sweeps behind the rows, moved as in sweeps.cuh
// No count comes from the host and none is waited for: buffers have room for every point of the message.
// Blocks add up what the chunks before theirs counted, so nothing depends on the order of blocks.
//
// Estimate: a message of 16 to 32 bytes a point is read twice, rows are written twice and read once:
// 130 bytes a point, for 300,000 points 39 MB that fit into the L2; ten microseconds, the launches included.
#include "sweeps.cuh"

#define THREADS 256  // points of a chunk, too
#define LIMIT 8192.0         // COORDINATE_LIMIT_M of io/pointcloud.py
#define MAX_SCAN_S 1.0       // io/point_values.py
#define ABSOLUTE_TIME 1e8    // io/point_values.py

// One message and what is wanted of it; lies before its bytes.
struct Cloud {
    int num_points, width, capacity, big_endian;
    u32 point_step, row_step;
    int offset[6], kind[6];  // x, y, z, intensity, time, ring; constants of PointField, 0 for no such field
    float missing, fill;     // intensity without a field, and in place of what is not finite, before scaling
    float factor, clip;      // rounded `scale` and `most`
    double scale, most;      // of intensities
    double stamp_ns;
    float ego_radius_m;
    int num_past;
    float* kept;             // (5, kept_stride) points of this sweep for later frames, or null
    int* num_kept;
    int kept_stride, unused;
};

// A sweep that joins; see sweeps.cu.
struct Past {
    const float* columns;    // (5, stride), the first *count of each
    const int* count;
    int stride;
    float age_s;
    double transform[12];
};

// What the host is told about a message.
struct Status {
    int num_rows, num_points, num_kept;  // with past sweeps, of this one, of these for later frames
    int usable, finite;                  // of all points of the message
    int odd;                             // OR of the flags below
    float intensity_low, intensity_high; // finite ones as they are in the message, of the points that stay
    double worst;                        // furthest finite coordinate
    double time_low, time_high;          // likewise
};

#define ODD_INTENSITY 1    // some intensity is not finite
#define ODD_TIME 2         // some time is not finite
#define ODD_RING 4         // some ring is not a number below 2^31
#define ANY_INTENSITY 8    // some intensity is finite
#define ANY_TIME 16        // some time is finite

// Of the points of a chunk.
struct Range {
    double time_low, time_high;  // of those that stay
    double worst;
    float intensity_low, intensity_high;
    int odd, finite;
};

// ---- reading a field --------------------------------------------------------------------------

__device__ __forceinline__ u64 load_bytes(const unsigned char* at, int size, bool swap) {
    if (size == 4 && !swap && (reinterpret_cast<size_t>(at) & 3) == 0) return *reinterpret_cast<const u32*>(at);
    u64 bits = 0;
    for (int i = 0; i < size; ++i) bits |= static_cast<u64>(at[i]) << 8 * (swap ? size - 1 - i : i);
    return bits;
}
__device__ __forceinline__ double bits_to_double(u64 bits) {
    union { u64 bits; double value; } both;
    both.bits = bits;
    return both.value;
}
// The value of a field; every type of PointField fits a double.
__device__ __forceinline__ double read_field(const unsigned char* point, const Cloud& cloud, int field) {
    const unsigned char* at = point + cloud.offset[field];
    const bool swap = cloud.big_endian != 0;
    switch (cloud.kind[field]) {
        case 1: return static_cast<signed char>(at[0]);
        case 2: return at[0];
        case 3: return static_cast<short>(load_bytes(at, 2, swap));
        case 4: return static_cast<unsigned short>(load_bytes(at, 2, swap));
        case 5: return static_cast<int>(load_bytes(at, 4, swap));
        case 6: return static_cast<u32>(load_bytes(at, 4, swap));
        case 7: return __uint_as_float(static_cast<u32>(load_bytes(at, 4, swap)));
        default: return bits_to_double(load_bytes(at, 8, swap));
    }
}
__device__ __forceinline__ const unsigned char* point_at(const Cloud& cloud, const unsigned char* data, int i) {
    const int row = i / cloud.width;
    return data + static_cast<u64>(row) * cloud.row_step + static_cast<u64>(i - row * cloud.width) * cloud.point_step;
}
__device__ __forceinline__ bool is_finite(double v) { return fabs(v) <= 1.7976931348623157e308; }
// The largest of |x|, |y|, |z|; NaN where one is NaN.
__device__ __forceinline__ double furthest(const unsigned char* point, const Cloud& cloud) {
    double most = 0.0;
    for (int axis = 0; axis < 3; ++axis) {
        const double v = fabs(read_field(point, cloud, axis));
        if (!(v <= most) && most == most) most = v;
    }
    return most;
}

// ---- sums and ranges of chunks ----------------------------------------------------------------

// Sums of counts[0, chunk) and of all counts[0, chunks); every thread receives both.
__device__ __forceinline__ int sums_before(const int* counts, int chunk, int chunks, int* total) {
    int before = 0, all = 0;
    for (int at = threadIdx.x; at < chunks; at += THREADS) {
        all += counts[at];
        before += at < chunk ? counts[at] : 0;
    }
    int sum;
    block_exclusive_sum<THREADS>(all, total);
    block_exclusive_sum<THREADS>(before, &sum);
    return sum;
}
__device__ __forceinline__ Range no_range() {
    const double inf = bits_to_double(0x7ffull << 52);
    return {inf, -inf, 0.0, static_cast<float>(inf), static_cast<float>(-inf), 0, 0};
}
__device__ __forceinline__ void merge(Range& into, const Range& other) {
    into.time_low = fmin(into.time_low, other.time_low);
    into.time_high = fmax(into.time_high, other.time_high);
    into.intensity_low = fminf(into.intensity_low, other.intensity_low);
    into.intensity_high = fmaxf(into.intensity_high, other.intensity_high);
    into.worst = fmax(into.worst, other.worst);
    into.odd |= other.odd;
    into.finite += other.finite;
}
// Merge one range of each thread into that of thread 0.
__device__ __forceinline__ void merge_block(Range* ranges, const Range& mine) {
    ranges[threadIdx.x] = mine;
    for (int d = THREADS / 2; d; d /= 2) {
        __syncthreads();
        if (threadIdx.x < d) merge(ranges[threadIdx.x], ranges[threadIdx.x + d]);
    }
    __syncthreads();
}
__device__ __forceinline__ int chunks_of(int count) { return (count + THREADS - 1) / THREADS; }

// ---- the passes -------------------------------------------------------------------------------

// One block a chunk; usable: (chunks).
extern "C" __global__ void __launch_bounds__(THREADS)
    inspect_points(const Cloud* __restrict__ given, const unsigned char* __restrict__ data, int* usable) {
    begin_dependent();
    const Cloud& cloud = *given;
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (blockIdx.x >= chunks_of(cloud.num_points)) return;
    const bool stays = i < cloud.num_points && furthest(point_at(cloud, data, i), cloud) < LIMIT;
    int total;
    block_exclusive_sum<THREADS>(stays, &total);
    if (threadIdx.x == 0) usable[blockIdx.x] = total;
}

// One block a chunk of the message; rows: (capacity, 5), times: (capacity), ranges: (chunks).
extern "C" __global__ void __launch_bounds__(THREADS)
    place_points(const Cloud* __restrict__ given, const unsigned char* __restrict__ data, const int* __restrict__ usable,
                 float* rows, double* times, Range* ranges) {
    begin_dependent();
    const Cloud& cloud = *given;
    const int chunks = chunks_of(cloud.num_points), i = blockIdx.x * THREADS + threadIdx.x;
    if (blockIdx.x >= chunks) return;
    int count;
    const int before = sums_before(usable, blockIdx.x, chunks, &count);
    const unsigned char* point = data;
    Range mine = no_range();
    int stays = 0;
    if (i < cloud.num_points) {
        point = point_at(cloud, data, i);
        const double far = furthest(point, cloud);
        stays = far < LIMIT;
        mine.finite = is_finite(far);
        if (mine.finite) mine.worst = far;
    }
    int unused;
    long long to = before + block_exclusive_sum<THREADS>(stays, &unused);
    if (stays && count > cloud.capacity) {
        const long long rank = to;
        to = (rank * cloud.capacity + count - 1) / count;
        stays = to < cloud.capacity && to * count / cloud.capacity == rank;
    }
    if (stays) {
        float* row = rows + 5 * to;
        for (int axis = 0; axis < 3; ++axis) row[axis] = static_cast<float>(read_field(point, cloud, axis));
        float intensity = cloud.missing;
        if (cloud.kind[3]) {
            intensity = static_cast<float>(read_field(point, cloud, 3));
            if (is_finite(intensity)) {
                mine.intensity_low = mine.intensity_high = intensity;
                mine.odd |= ANY_INTENSITY;
            } else {
                mine.odd |= ODD_INTENSITY;
            }
        }
        row[3] = intensity;
        if (cloud.kind[4]) {
            const double time = read_field(point, cloud, 4);
            times[to] = time;
            if (is_finite(time)) {
                mine.time_low = mine.time_high = time;
                mine.odd |= ANY_TIME;
            } else {
                mine.odd |= ODD_TIME;
            }
        }
        if (cloud.kind[5] && !(fabs(read_field(point, cloud, 5)) < 2147483648.0)) mine.odd |= ODD_RING;
    }
    __shared__ Range shared[THREADS];
    merge_block(shared, mine);
    if (threadIdx.x == 0) ranges[blockIdx.x] = shared[0];
}

// What all points of a message have in common.
struct Rules {
    int clips, has_lag;
    double newest, reference, unit_s;
};

__device__ __forceinline__ double clock_unit_s(double reading) {
    return reading < 1e11 ? 1.0 : reading < 1e14 ? 1e-3 : reading < 1e17 ? 1e-6 : 1e-9;
}
// As io/point_values.py, in the same float64.
__device__ __forceinline__ Rules rules_of(const Cloud& cloud, const Range& all) {
    Rules rules = {0, 0, all.time_high, 0.0, 1.0};
    double low = all.intensity_low, high = all.intensity_high;
    if (all.odd & ODD_INTENSITY) {
        low = fmin(low, static_cast<double>(cloud.fill));
        high = fmax(high, static_cast<double>(cloud.fill));
    }
    if (cloud.scale != 1.0) {
        low = __dmul_rn(low, cloud.scale);
        high = __dmul_rn(high, cloud.scale);
    }
    rules.clips = low < 0.0 || high > cloud.most;
    if (!cloud.kind[4] || !(all.odd & ANY_TIME)) return rules;
    const bool is_float = cloud.kind[4] >= 7, is_clock = is_float && all.time_high >= ABSOLUTE_TIME;
    const double unit_s = is_clock ? clock_unit_s(all.time_high) : is_float ? 1.0 : 1e-9;
    const double span_s = __dmul_rn(__dsub_rn(all.time_high, all.time_low), unit_s);
    rules.has_lag = span_s != 0.0 && !(span_s > MAX_SCAN_S);
    const double stamp = is_clock ? __dmul_rn(cloud.stamp_ns, __ddiv_rn(1e-9, unit_s)) : 0.0;
    const double ahead_s = __dmul_rn(__dsub_rn(stamp, all.time_high), unit_s);
    rules.reference = 0.0 <= ahead_s && ahead_s <= MAX_SCAN_S ? stamp : all.time_high;
    rules.unit_s = unit_s;
    return rules;
}
__device__ __forceinline__ float scaled(float intensity, const Cloud& cloud, bool clips) {
    if (!is_finite(intensity)) intensity = cloud.fill;
    if (cloud.scale != 1.0) intensity = __fmul_rn(intensity, cloud.factor);
    if (!clips) return intensity;
    const float least = intensity < 0.0f ? 0.0f : intensity;  // numpy's clip leaves -0 alone, too
    return least > cloud.clip ? cloud.clip : least;
}
__device__ __forceinline__ float time_lag(double time, const Rules& rules) {
    if (!is_finite(time)) time = rules.newest;
    double lag = __dsub_rn(rules.reference, time);
    if (rules.unit_s != 1.0) lag = __dmul_rn(lag, rules.unit_s);
    return static_cast<float>(lag);
}
__device__ __forceinline__ bool is_vehicle(const float* row, float radius_m) {
    return fabsf(row[0]) < radius_m && fabsf(row[1]) < radius_m;
}

// Any number of blocks; others: (chunks of rows) rows that are not the vehicle itself.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    finish_points(const Cloud* __restrict__ given, const int* __restrict__ usable, const Range* __restrict__ ranges,
                  float* rows, const double* __restrict__ times, int* others, Status* status) {
    begin_dependent();
    const Cloud& cloud = *given;
    const int chunks = chunks_of(cloud.num_points);
    int num_usable;
    sums_before(usable, 0, chunks, &num_usable);
    const int count = num_usable < cloud.capacity ? num_usable : cloud.capacity;
    __shared__ Range shared[THREADS];
    Range mine = no_range();
    for (int at = threadIdx.x; at < chunks; at += THREADS) merge(mine, ranges[at]);
    merge_block(shared, mine);
    __shared__ Rules rules;
    if (threadIdx.x == 0) rules = rules_of(cloud, shared[0]);
    __syncthreads();
    for (int chunk = blockIdx.x; chunk < chunks_of(count); chunk += gridDim.x) {
        const int i = chunk * THREADS + threadIdx.x;
        int stays = 0, total;
        if (i < count) {
            float* row = rows + 5LL * i;
            if (cloud.kind[3]) row[3] = scaled(row[3], cloud, rules.clips);
            row[4] = rules.has_lag ? time_lag(times[i], rules) : 0.0f;
            stays = !is_vehicle(row, cloud.ego_radius_m);
        }
        block_exclusive_sum<THREADS>(stays, &total);
        if (threadIdx.x == 0) others[chunk] = total;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        const Range& all = shared[0];
        *status = {count, count, 0, num_usable, all.finite, all.odd, all.intensity_low, all.intensity_high,
                   all.worst, all.time_low, all.time_high};
    }
}

// Grid: any number of blocks along x; along y the current sweep, then one for each past sweep.
extern "C" __global__ void __launch_bounds__(THREADS)
    join_sweeps(const Cloud* __restrict__ given, const Past* __restrict__ past, const int* __restrict__ others,
                float* rows, Status* status) {
    begin_dependent();
    const Cloud& cloud = *given;
    const int count = status->num_points, chunks = chunks_of(count);
    if (blockIdx.y == 0) {
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            int all = count;
            for (int k = 0; k < cloud.num_past; ++k) all += *past[k].count;
            status->num_rows = all;
        }
        if (!cloud.kept) return;
        int total;
        for (int chunk = blockIdx.x; chunk < (chunks ? chunks : 1); chunk += gridDim.x) {
            const int before = sums_before(others, chunk, chunks, &total), i = chunk * THREADS + threadIdx.x;
            const float* row = rows + 5LL * i;
            const int stays = i < count && !is_vehicle(row, cloud.ego_radius_m);
            int unused;
            const long long to = before + block_exclusive_sum<THREADS>(stays, &unused);
            for (int k = 0; stays && k < 5; ++k) cloud.kept[k * static_cast<long long>(cloud.kept_stride) + to] = row[k];
        }
        if (blockIdx.x == 0 && threadIdx.x == 0) *cloud.num_kept = status->num_kept = total;
        return;
    }
    const int which = blockIdx.y - 1;
    if (which >= cloud.num_past) return;
    const Past& sweep = past[which];
    long long begin = count;
    for (int k = 0; k < which; ++k) begin += *past[k].count;
    const int points = *sweep.count;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < points; i += gridDim.x * THREADS) {
        move_point(sweep.columns + i, sweep.stride, sweep.transform, sweep.age_s, rows + 5 * (begin + i));
    }
}
