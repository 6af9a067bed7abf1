// Asynchronous copies to shared memory. Each happens at once, or as late as its wait allows, by
// chance: a kernel that reads too early, or overwrites what is still being read, gives results that
// are wrong or change with the seed.
#pragma once
#include "intrinsics.h"

namespace {
namespace shim {

inline void perform(const Copy& copy) {
    if (copy.global)
        memcpy(copy.shared, copy.global, 16);
    else
        memset(copy.shared, 0, 16);
}

inline bool is_shared(const void* p, size_t bytes) {
    const char* at = static_cast<const char*>(p);
    const char *dynamic = run->current_block->dynamic, *statics = run->current_block->statics;
    return (dynamic && at >= dynamic && at + bytes <= dynamic + run->shared) ||
           (at >= statics && at + bytes <= statics + static_used);
}

}  // namespace shim

SHIM_INLINE void copy16_async(void* shared, const void* global, bool valid) {
    races::Quiet quiet;
    shim::Fiber& f = *shim::run->current;
    if (!shim::is_shared(shared, 16) || reinterpret_cast<uintptr_t>(shared) % 16)
        shim::fail("%s copies asynchronously to %p, which is not 16 aligned bytes of shared memory", shim::place(f).c_str(), shared);
    if (reinterpret_cast<uintptr_t>(global) % 16)
        shim::fail("%s copies asynchronously from %p, which is not aligned to 16 bytes", shim::place(f).c_str(), global);
    const shim::Copy copy = {shared, valid ? global : nullptr, races::here()};
    if (valid) races::touch(global, 16, races::READ, races::PLAIN, copy.code);
    races::touch(shared, 16, races::WRITE, races::FLYING, copy.code);
    if (!races::kOn && shim::one_in(2)) {
        shim::perform(copy);
    } else {
        f.copies.push_back(copy);
        ++f.open_copies;
    }
}

inline void copy_commit() {
    races::Quiet quiet;
    shim::Fiber& f = *shim::run->current;
    f.groups.push_back(f.open_copies);
    f.open_copies = 0;
}

// Returns when all but the PENDING youngest groups have arrived.
template <int PENDING>
inline void copy_wait() {
    races::Quiet quiet;
    shim::Fiber& f = *shim::run->current;
    size_t groups = f.groups.size() > PENDING ? f.groups.size() - PENDING : 0, copies = 0;
    for (size_t i = 0; i < groups; ++i) copies += f.groups[i];
    for (size_t i = 0; i < copies; ++i) {
        shim::perform(f.copies[i]);
        races::touch(f.copies[i].shared, 16, races::WRITE, races::ARRIVED, f.copies[i].code);
    }
    f.copies.erase(f.copies.begin(), f.copies.begin() + copies);
    f.groups.erase(f.groups.begin(), f.groups.begin() + groups);
}

}  // namespace
