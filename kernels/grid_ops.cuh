// Where NanoVDB keeps what, as in core/nanovdb_layout.py: bytes unless said otherwise.
#pragma once
#include "common.cuh"

#define GRID_BYTES 672
#define HEAD_BYTES 736  // grid and tree data; the root follows
#define TILE_BYTES 32
#define UPPER_BYTES 270400
#define LOWER_BYTES 33856
#define UPPER_SLOTS 32768
#define LOWER_SLOTS 4096

template <typename T>
__device__ __forceinline__ T* at_byte(u32* base, u64 offset) {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(base) + offset);
}
template <typename T>
__device__ __forceinline__ const T* at_byte(const u32* base, u64 offset) {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(base) + offset);
}
