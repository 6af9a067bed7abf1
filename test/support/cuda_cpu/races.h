// What the fibers tell the race detector (races.cpp). Without SHIM_RACES all of it is nothing.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef SHIM_RACES
#define SHIM_INLINE inline __attribute__((always_inline))  // so that an access has the line of the kernel
#else
#define SHIM_INLINE inline
#endif

namespace races {

struct Clocks;  // of a block

enum Access { READ, WRITE, READ_WRITE };
enum Kind : uint8_t {
    PLAIN,
    STRONG,   // volatile or atomic: two of them do not race
    CACHED,   // __ldg: only of what no thread of the launch writes
    FLYING,   // an asynchronous copy on its way
    ARRIVED,  // the same when its thread has waited for it
};

#ifdef SHIM_RACES
// Where the thread that runs has its memory. While `on`, every load and store is looked at.
struct Watch {
    bool on = false;
    Clocks* clocks = nullptr;
    uint32_t block = 0, thread = 0;
    const char *stack = nullptr, *stack_end = nullptr;
    const char *dynamic = nullptr, *dynamic_end = nullptr, *statics = nullptr, *statics_end = nullptr;
};
extern Watch watch;

void begin(const unsigned* block);  // a launch
bool end(char* error, size_t capacity);  // true when it had races
Clocks* start_block(Clocks* old, unsigned threads);
void release(Clocks* clocks);
void barrier(Clocks& clocks);
void meet(Clocks& clocks, unsigned first, uint32_t mask);
void fence();
uint32_t here();  // the instruction that the caller returns to
void touch(const void* at, size_t bytes, Access access, Kind kind, uint32_t code);

// Code of the shim itself: the detector looks away, also while other threads run meanwhile.
struct Quiet {
    const bool before = watch.on;
    Quiet() { watch.on = false; }
    ~Quiet() { watch.on = before; }
};
constexpr bool kOn = true;
constexpr bool kStrict = SHIM_RACES > 1;  // shuffles and votes order nothing
#else
constexpr bool kOn = false, kStrict = false;
struct Quiet {
    Quiet() {}
};
inline void begin(const unsigned*) {}
inline bool end(char*, size_t) { return false; }
inline Clocks* start_block(Clocks*, unsigned) { return nullptr; }
inline void release(Clocks*) {}
inline void barrier(Clocks&) {}
inline void meet(Clocks&, unsigned, uint32_t) {}
inline void fence() {}
inline uint32_t here() { return 0; }
inline void touch(const void*, size_t, Access, Kind, uint32_t) {}
#endif

}  // namespace races
