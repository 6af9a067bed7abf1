// The CUDA built-ins that the kernels use: vectors, warp operations, atomics, bits and arithmetic.
#pragma once
#include <cmath>
#include <type_traits>

#include "runtime.h"

#define __host__
#define __device__
#define __global__
#define __grid_constant__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(n) alignas(n)
// What the loader makes of `__shared__ type name dims;`
#define SHIM_SHARED(type, name, dims)                                                                  \
    static const size_t name##_offset = shim::reserve_shared(sizeof(type dims), alignof(type));       \
    type(&name) dims = *static_cast<type(*) dims>(shim::shared_at(name##_offset, sizeof(type dims)));
#define SHARED_DYNAMIC(type, name) type* name = reinterpret_cast<type*>(shim::run->current_block->dynamic)
#define SPIN_YIELD() shim::spin({"spin", __FILE__, __LINE__})

#define SHIM_WHERE(what) (shim::Where{what, __FILE__, __LINE__})
#define __syncthreads() shim::block_barrier(SHIM_WHERE("__syncthreads"))
#define __syncwarp(...) shim::sync_warp(SHIM_WHERE("__syncwarp"), ##__VA_ARGS__)
#define __shfl_sync(...) shim::shuffle(SHIM_WHERE("__shfl_sync"), __VA_ARGS__)
#define __shfl_up_sync(...) shim::shuffle_up(SHIM_WHERE("__shfl_up_sync"), __VA_ARGS__)
#define __shfl_down_sync(...) shim::shuffle_down(SHIM_WHERE("__shfl_down_sync"), __VA_ARGS__)
#define __shfl_xor_sync(...) shim::shuffle_xor(SHIM_WHERE("__shfl_xor_sync"), __VA_ARGS__)
#define __ballot_sync(mask, p) shim::ballot(SHIM_WHERE("__ballot_sync"), mask, p)
#define __any_sync(mask, p) (shim::ballot(SHIM_WHERE("__any_sync"), mask, p) != 0)
#define __all_sync(mask, p) (shim::ballot(SHIM_WHERE("__all_sync"), mask, p) == (mask))
#define __match_any_sync(mask, v) shim::match_any(SHIM_WHERE("__match_any_sync"), mask, v)
#define __reduce_add_sync(mask, v) shim::reduce<shim::Add>(SHIM_WHERE("__reduce_add_sync"), mask, v)
#define __reduce_min_sync(mask, v) shim::reduce<shim::Min>(SHIM_WHERE("__reduce_min_sync"), mask, v)
#define __reduce_max_sync(mask, v) shim::reduce<shim::Max>(SHIM_WHERE("__reduce_max_sync"), mask, v)
#define __reduce_and_sync(mask, v) shim::reduce<shim::And>(SHIM_WHERE("__reduce_and_sync"), mask, v)
#define __reduce_or_sync(mask, v) shim::reduce<shim::Or>(SHIM_WHERE("__reduce_or_sync"), mask, v)

namespace {

// ---- vectors -----------------------------------------------------------------------------------

#define SHIM_VECTOR2(name, type, bytes)            \
    struct alignas(bytes) name { type x, y; };     \
    inline name make_##name(type x, type y) { return {x, y}; }
#define SHIM_VECTOR4(name, type, bytes)                 \
    struct alignas(bytes) name { type x, y, z, w; };    \
    inline name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }
#define SHIM_VECTOR3(name, type)            \
    struct name { type x, y, z; };          \
    inline name make_##name(type x, type y, type z) { return {x, y, z}; }
SHIM_VECTOR2(int2, int, 8)
SHIM_VECTOR3(int3, int)
SHIM_VECTOR4(int4, int, 16)
SHIM_VECTOR2(uint2, unsigned, 8)
SHIM_VECTOR3(uint3, unsigned)
SHIM_VECTOR4(uint4, unsigned, 16)
SHIM_VECTOR2(float2, float, 8)
SHIM_VECTOR3(float3, float)
SHIM_VECTOR4(float4, float, 16)
SHIM_VECTOR2(double2, double, 16)
SHIM_VECTOR2(longlong2, long long, 16)
SHIM_VECTOR2(ulonglong2, unsigned long long, 16)
SHIM_VECTOR4(uchar4, unsigned char, 4)
SHIM_VECTOR2(ushort2, unsigned short, 4)

// ---- warp operations ---------------------------------------------------------------------------

namespace shim {

inline int lane() { return run->current->index & 31; }

inline void sync_warp(Where where, uint32_t mask = 0xffffffffu) {
    meet(where, mask, [](void* const*, uint32_t) {}, nullptr);
}

struct Shuffled {
    Where where;
    uint64_t value, result;
    int source;
};
inline void exchange_shuffled(void* const* payload, uint32_t mask) {
    for (int i = 0; i < 32; ++i) {
        if (!(mask >> i & 1u)) continue;
        Shuffled& mine = *static_cast<Shuffled*>(payload[i]);
        if (!(mask >> mine.source & 1u))
            fail("lane %d of a warp reads lane %d in %s, which the mask %08x does not name", i, mine.source, text_of(mine.where).c_str(), mask);
        mine.result = static_cast<Shuffled*>(payload[mine.source])->value;
    }
}
template <typename T>
T shuffle_from(Where where, uint32_t mask, T value, int source) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "lanes exchange 4 or 8 bytes");
    Shuffled mine = {where, 0, 0, source};
    memcpy(&mine.value, &value, sizeof(T));
    meet(where, mask, exchange_shuffled, &mine);
    memcpy(&value, &mine.result, sizeof(T));
    return value;
}
template <typename T>
T shuffle(Where where, uint32_t mask, T value, int source, int width = 32) {
    return shuffle_from(where, mask, value, (lane() & ~(width - 1)) | (source & (width - 1)));
}
template <typename T>
T shuffle_up(Where where, uint32_t mask, T value, unsigned delta, int width = 32) {
    const int source = lane() - static_cast<int>(delta);
    return shuffle_from(where, mask, value, source < (lane() & ~(width - 1)) ? lane() : source);
}
template <typename T>
T shuffle_down(Where where, uint32_t mask, T value, unsigned delta, int width = 32) {
    const int source = lane() + static_cast<int>(delta);
    return shuffle_from(where, mask, value, source > (lane() | (width - 1)) ? lane() : source);
}
template <typename T>
T shuffle_xor(Where where, uint32_t mask, T value, int bits, int width = 32) {
    const int source = lane() ^ bits;
    return shuffle_from(where, mask, value, source > (lane() | (width - 1)) ? lane() : source);
}

struct Vote {
    uint64_t value;
    uint32_t result;
};
inline uint32_t ballot(Where where, uint32_t mask, int predicate) {
    Vote mine = {predicate != 0, 0};
    meet(where, mask, [](void* const* payload, uint32_t mask) {
        uint32_t bits = 0;
        for (int i = 0; i < 32; ++i)
            if (mask >> i & 1u) bits |= static_cast<uint32_t>(static_cast<Vote*>(payload[i])->value) << i;
        for (int i = 0; i < 32; ++i)
            if (mask >> i & 1u) static_cast<Vote*>(payload[i])->result = bits;
    }, &mine);
    return mine.result;
}
template <typename T>
uint32_t match_any(Where where, uint32_t mask, T value) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "lanes compare 4 or 8 bytes");
    Vote mine = {0, 0};
    memcpy(&mine.value, &value, sizeof(T));
    meet(where, mask, [](void* const* payload, uint32_t mask) {
        for (int i = 0; i < 32; ++i)
            for (int j = 0; j < 32; ++j)
                if ((mask >> i & 1u) && (mask >> j & 1u) &&
                    static_cast<Vote*>(payload[i])->value == static_cast<Vote*>(payload[j])->value)
                    static_cast<Vote*>(payload[i])->result |= 1u << j;
    }, &mine);
    return mine.result;
}

struct Add { template <typename T> static T of(T a, T b) { return a + b; } };
struct Min { template <typename T> static T of(T a, T b) { return a < b ? a : b; } };
struct Max { template <typename T> static T of(T a, T b) { return a > b ? a : b; } };
struct And { template <typename T> static T of(T a, T b) { return a & b; } };
struct Or { template <typename T> static T of(T a, T b) { return a | b; } };
template <typename Operation, typename T>
T reduce(Where where, uint32_t mask, T value) {
    static_assert(std::is_same<T, int>::value || std::is_same<T, unsigned>::value, "warps reduce 32-bit integers");
    meet(where, mask, [](void* const* payload, uint32_t mask) {
        bool first = true;
        T all = 0;
        for (int i = 0; i < 32; ++i)
            if (mask >> i & 1u) all = first ? *static_cast<T*>(payload[i]) : Operation::of(all, *static_cast<T*>(payload[i])), first = false;
        for (int i = 0; i < 32; ++i)
            if (mask >> i & 1u) *static_cast<T*>(payload[i]) = all;
    }, &value);
    return value;
}

// ---- atomics -----------------------------------------------------------------------------------

template <typename T>
struct Same { using type = T; };
template <typename T, typename Update>
SHIM_INLINE T update(T* at, Update next) {
    races::Quiet quiet;
    maybe_yield();
    progress();
    races::touch(at, sizeof(T), races::READ_WRITE, races::STRONG, races::here());
    const T old = *at;
    *at = next(old);
    return old;
}

template <typename T>
SHIM_INLINE T load(const T* at, races::Kind kind) {
    races::Quiet quiet;
    races::touch(at, sizeof(T), races::READ, kind, races::here());
    return *at;
}

}  // namespace shim

#define SHIM_ATOMIC(name, expression)                                             \
    template <typename T>                                                         \
    SHIM_INLINE T name(T* at, typename shim::Same<T>::type v) {                   \
        return shim::update(at, [v](T old) { (void)old; return static_cast<T>(expression); }); \
    }
SHIM_ATOMIC(atomicAdd, old + v)
SHIM_ATOMIC(atomicSub, old - v)
SHIM_ATOMIC(atomicOr, old | v)
SHIM_ATOMIC(atomicAnd, old & v)
SHIM_ATOMIC(atomicXor, old ^ v)
SHIM_ATOMIC(atomicMin, old < v ? old : v)
SHIM_ATOMIC(atomicMax, old > v ? old : v)
SHIM_ATOMIC(atomicExch, v)
template <typename T>
SHIM_INLINE T atomicCAS(T* at, typename shim::Same<T>::type compare, typename shim::Same<T>::type v) {
    return shim::update(at, [=](T old) { return old == compare ? v : old; });
}
inline void __threadfence() { races::fence(); }
inline void __threadfence_block() {}

// ---- bits, memory, arithmetic ------------------------------------------------------------------

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __clz(int v) { return v ? __builtin_clz(v) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll(v) : 64; }
inline unsigned __brev(unsigned v) {
    unsigned r = 0;
    for (int i = 0; i < 32; ++i) r |= (v >> i & 1u) << (31 - i);
    return r;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long both = static_cast<unsigned long long>(b) << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; ++i) r |= static_cast<unsigned>(both >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
    return r;
}
inline unsigned __float_as_uint(float v) { unsigned r; memcpy(&r, &v, 4); return r; }
inline int __float_as_int(float v) { int r; memcpy(&r, &v, 4); return r; }
inline float __uint_as_float(unsigned v) { float r; memcpy(&r, &v, 4); return r; }
inline float __int_as_float(int v) { float r; memcpy(&r, &v, 4); return r; }

template <typename T> SHIM_INLINE T __ldg(const T* p) { return shim::load(p, races::CACHED); }
template <typename T> SHIM_INLINE T __ldcg(const T* p) { return shim::load(p, races::STRONG); }  // where atomics happen
template <typename T> T __ldca(const T* p) { return *p; }
template <typename T> T __ldcs(const T* p) { return *p; }
template <typename T> void __stcg(T* p, typename shim::Same<T>::type v) { *p = v; }
template <typename T> void __stcs(T* p, typename shim::Same<T>::type v) { *p = v; }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
using std::isfinite;
using std::isinf;
using std::isnan;

template <typename A, typename B, typename C = typename std::common_type<A, B>::type>
constexpr C min(A a, B b) { return static_cast<C>(b) < static_cast<C>(a) ? static_cast<C>(b) : static_cast<C>(a); }
template <typename A, typename B, typename C = typename std::common_type<A, B>::type>
constexpr C max(A a, B b) { return static_cast<C>(a) < static_cast<C>(b) ? static_cast<C>(b) : static_cast<C>(a); }

}  // namespace
