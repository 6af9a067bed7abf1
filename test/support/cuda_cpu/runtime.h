// Runs the blocks and threads of a kernel as fibers of one CPU thread.
//
// A thread runs until it reaches a barrier, a warp operation, an atomic or a spin; then a thread of
// the same block is chosen at random from those that can run. So threads advance in an order that
// only synchronization restricts, and a kernel that lacks some gives results that change with the
// seed. Blocks run one after the other, or `resident` of them mixed.
#pragma once
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>

#include <string>
#include <utility>
#include <vector>

#include "races.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define SHIM_ASAN 1
#define SHIM_NO_ASAN __attribute__((no_sanitize_address))
#else
#define SHIM_ASAN 0
#define SHIM_NO_ASAN
#endif
#if !defined(__x86_64__) || defined(SHIM_UCONTEXT)
#undef SHIM_UCONTEXT
#define SHIM_UCONTEXT 1
#include <ucontext.h>
#else
#define SHIM_UCONTEXT 0
#endif

#if !SHIM_UCONTEXT
// Saves the registers that a call preserves, changes the stack, restores those of the other side.
extern "C" void shim_switch(void** save, void* load) __attribute__((visibility("hidden")));
asm(R"(
.text
.hidden shim_switch
.type shim_switch,@function
shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size shim_switch,.-shim_switch
)");
#endif

namespace {
namespace shim {

constexpr size_t kStackBytes = SHIM_ASAN ? 128 * 1024 : 64 * 1024;
constexpr size_t kGuardBytes = 4096;
constexpr size_t kStaticBytes = 64 * 1024;  // static shared memory of a block
constexpr int kMaxSpins = 1 << 20;     // spins in a row without any other thread getting further
constexpr int kWatchdogSeconds = 5;   // CPU time that a thread may run without a yield

struct Dim3 {
    unsigned x = 1, y = 1, z = 1;
};

struct Where {
    const char* what;  // the operation
    const char* file;
    int line;
};

struct Context {
#if SHIM_UCONTEXT
    ucontext_t registers;
#else
    void* sp = nullptr;
#endif
    void* fake_stack = nullptr;
    const void* bottom = nullptr;
    size_t bytes = 0;
};

struct Copy {
    void* shared;
    const void* global;  // null: zeros
    uint32_t code;
};

struct Fiber {
    Context context;
    char* stack = nullptr;
    Dim3 thread;
    int index = 0;
    bool done = false;
    Where waits = {};            // what it waits for, while it waits
    std::vector<Copy> copies;    // asynchronous copies in flight, oldest first
    std::vector<size_t> groups;  // number of copies in flight in each committed group
    size_t open_copies = 0;      // copies not committed yet
};

using Exchange = void (*)(void* const* payload, uint32_t mask);

// A warp operation that some of its lanes have reached.
struct Meeting {
    uint32_t mask, arrived;
    Exchange exchange;
    void* payload[32];
};

struct Block {
    Dim3 index;
    std::vector<Fiber> fibers;
    std::vector<Fiber*> ready;
    std::vector<std::vector<Meeting>> meetings;  // of each warp
    int threads = 0, live = 0, at_barrier = 0;
    Where barrier = {};
    char* dynamic = nullptr;  // dynamic shared memory
    char* statics = nullptr;  // static shared memory
    uint64_t number = 0;      // of all blocks
    races::Clocks* clocks = nullptr;
};

using Invoke = void (*)(void* kernel, void** args);

struct Run {
    const char* name;
    void* kernel;
    Invoke invoke;
    void** args;
    Dim3 grid, block;
    unsigned shared;
    uint64_t random;
    std::vector<Block*> running;
    Block* current_block = nullptr;
    Fiber* current = nullptr;
    Context main;
    int spins = 0;
    volatile uint64_t switches = 0;
    uint64_t seen_switches = 0;
    int idle_ticks = 0;
    bool failed = false;
    char error[2000] = "";
    sigjmp_buf rescue;
};

Run* run = nullptr;
std::vector<Block*> pool;  // blocks with stacks, for the next ones of the same launch
size_t static_used = 0;    // static shared memory given to variables

inline uint64_t random_bits() {
    uint64_t& s = run->random;
    s ^= s << 13, s ^= s >> 7, s ^= s << 17;
    return s * 0x2545f4914f6cdd1dull >> 16;
}
inline unsigned random_below(unsigned n) { return static_cast<unsigned>((random_bits() & 0xffffffffu) * n >> 32); }
inline bool one_in(unsigned n) { return random_below(n) == 0; }

}  // namespace shim

shim::Dim3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace shim {

inline void jump(Context& from, Context& to, bool last = false) {
    (void)last;
#if SHIM_ASAN
    __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.bottom, to.bytes);
#endif
#if SHIM_UCONTEXT
    swapcontext(&from.registers, &to.registers);
#else
    shim_switch(&from.sp, to.sp);
#endif
#if SHIM_ASAN
    __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

inline std::string place(const Fiber& f) {
    char text[160];
    const Dim3& b = run->current_block->index;
    snprintf(text, sizeof text, "thread (%u, %u, %u) of block (%u, %u, %u)", f.thread.x, f.thread.y, f.thread.z, b.x, b.y, b.z);
    return text;
}
inline std::string text_of(const Where& w) {
    const char* slash = strrchr(w.file ? w.file : "?", '/');
    return std::string(w.what ? w.what : "?") + " at " + (slash ? slash + 1 : w.file ? w.file : "?") + ":" + std::to_string(w.line);
}

// Ends the launch with an error; the fibers are abandoned where they stand.
[[noreturn]] void fail(const char* format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(run->error, sizeof run->error, format, list);
    va_end(list);
    run->failed = true;
    jump(run->current->context, run->main);
    abort();
}

// Ends the launch with an error from outside the fibers.
[[noreturn]] void give_up(const char* format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(run->error, sizeof run->error, format, list);
    va_end(list);
    run->failed = true;
    siglongjmp(run->rescue, 1);
}

inline void progress() { run->spins = 0; }
inline void make_ready(Block& b, Fiber* f) { b.ready.push_back(f); }

inline Fiber* pick(Block& b) {
    const unsigned i = random_below(b.ready.size());
    Fiber* f = b.ready[i];
    b.ready[i] = b.ready.back();
    b.ready.pop_back();
    return f;
}

inline void enter(Fiber* f) {
    run->current = f;
    threadIdx = f->thread;
    run->switches = run->switches + 1;
#ifdef SHIM_RACES
    const Block& b = *run->current_block;
    races::watch = {false, b.clocks, static_cast<uint32_t>(b.number), static_cast<uint32_t>(f->index), f->stack,
                    f->stack + kStackBytes, b.dynamic, b.dynamic + run->shared, b.statics, b.statics + kStaticBytes};
#endif
}

// Runs another thread until this one is chosen again. `elsewhere`: another block may run first.
inline void yield(bool elsewhere = false, bool last = false) {
    Block& b = *run->current_block;
    Fiber* self = run->current;
    if (b.ready.empty() || (elsewhere && run->running.size() > 1)) {
        jump(self->context, run->main, last);
        return;
    }
    Fiber* next = pick(b);
    if (next == self) return;
    enter(next);
    jump(self->context, next->context, last);
}

inline void maybe_yield() {
    if (!one_in(16)) return;
    make_ready(*run->current_block, run->current);
    yield();
}

// ---- static shared variables: the same place in the memory of every block ------------------------

inline size_t reserve_shared(size_t bytes, size_t alignment) {
    constexpr size_t gap = 32;  // so that a sanitizer sees what lies behind an array
    const size_t at = (static_used + alignment - 1) / alignment * alignment;
    static_used = (at + bytes + gap + 15) / 16 * 16;
    if (static_used > kStaticBytes) fail("the kernels have more than %zu bytes of static shared variables", kStaticBytes);
    return at;
}
inline void* shared_at(size_t offset, size_t bytes) {
    char* at = run->current_block->statics + offset;
    (void)bytes;
#if SHIM_ASAN
    ASAN_UNPOISON_MEMORY_REGION(at, bytes);
#endif
    return at;
}

// ---- synchronization ---------------------------------------------------------------------------

inline void block_barrier(Where where) {
    races::Quiet quiet;
    Block& b = *run->current_block;
    Fiber* self = run->current;
    if (b.live != b.threads)
        fail("barrier divergence: %s reached %s, but %d of %d threads have returned", place(*self).c_str(),
             text_of(where).c_str(), b.threads - b.live, b.threads);
    if (b.at_barrier && (b.barrier.line != where.line || strcmp(b.barrier.file, where.file)))
        fail("barrier divergence: %s reached %s while others wait for %s", place(*self).c_str(), text_of(where).c_str(),
             text_of(b.barrier).c_str());
    b.barrier = where;
    self->waits = where;
    if (++b.at_barrier == b.threads) {
        b.at_barrier = 0;
        races::barrier(*b.clocks);
        for (Fiber& f : b.fibers) make_ready(b, &f);
        progress();
    }
    yield(one_in(b.threads * 2));
    self->waits = {};
}

// All lanes of the mask meet; the last one runs the exchange on what they brought.
inline void meet(Where where, uint32_t mask, Exchange exchange, void* payload) {
    races::Quiet quiet;
    Block& b = *run->current_block;
    Fiber* self = run->current;
    const int lane = self->index & 31, first = self->index & ~31;
    if (!(mask >> lane & 1u))
        fail("%s reached %s with mask %08x, which does not name its lane %d", place(*self).c_str(), text_of(where).c_str(), mask, lane);
    for (int i = 0; i < 32; ++i)
        if ((mask >> i & 1u) && (first + i >= b.threads || b.fibers[first + i].done))
            fail("%s reached %s with mask %08x, but lane %d %s", place(*self).c_str(), text_of(where).c_str(), mask, i,
                 first + i >= b.threads ? "does not exist" : "has returned");
    std::vector<Meeting>& open = b.meetings[self->index / 32];
    size_t at = 0;
    while (at < open.size() && !(open[at].mask & mask)) ++at;
    if (at == open.size()) open.push_back({mask, 0, exchange, {}});
    Meeting& m = open[at];
    if (m.mask != mask || m.exchange != exchange)
        fail("lanes of a warp disagree: %s reached %s with mask %08x while others wait in another operation or with mask %08x",
             place(*self).c_str(), text_of(where).c_str(), mask, m.mask);
    m.payload[lane] = payload;
    m.arrived |= 1u << lane;
    if (m.arrived == mask) {
        const Meeting done = m;
        open.erase(open.begin() + at);
        exchange(done.payload, mask);
        if (!races::kStrict || !strcmp(where.what, "__syncwarp")) races::meet(*b.clocks, first, mask);
        for (int i = 0; i < 32; ++i)
            if (mask >> i & 1u) make_ready(b, &b.fibers[first + i]);
        progress();
    } else {
        self->waits = where;
    }
    yield();
    self->waits = {};
}

// A thread waits in a loop for a value that another one writes.
inline void spin(Where where) {
    races::Quiet quiet;
    if (++run->spins > kMaxSpins)
        fail("deadlock: %s waits at %s:%d for a value that no running thread writes", place(*run->current).c_str(), where.file, where.line);
    make_ready(*run->current_block, run->current);
    yield(one_in(8));
}

// ---- fibers ------------------------------------------------------------------------------------

SHIM_NO_ASAN void fiber_main() {
#if SHIM_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
#ifdef SHIM_RACES
    races::watch.on = true;
    run->invoke(run->kernel, run->args);
    races::watch.on = false;
#else
    run->invoke(run->kernel, run->args);
#endif
    Block& b = *run->current_block;
    Fiber* self = run->current;
    if (!self->copies.empty()) fail("%s returned with asynchronous copies in flight", place(*self).c_str());
    if (b.at_barrier) fail("barrier divergence: %s returned while others wait for %s", place(*self).c_str(), text_of(b.barrier).c_str());
    for (const Meeting& m : b.meetings[self->index / 32])
        if (m.mask >> (self->index & 31) & 1u) fail("%s, lane %d of its warp, has returned while others wait for it", place(*self).c_str(), self->index & 31);
    self->done = true;
    --b.live;
    progress();
    yield(false, true);
    abort();
}

inline void prepare(Fiber& f) {
#if SHIM_ASAN
    ASAN_UNPOISON_MEMORY_REGION(f.stack, kStackBytes);  // frames of the fiber before it never returned
#endif
#if SHIM_UCONTEXT
    getcontext(&f.context.registers);
    f.context.registers.uc_stack.ss_sp = f.stack;
    f.context.registers.uc_stack.ss_size = kStackBytes;
    f.context.registers.uc_link = nullptr;
    makecontext(&f.context.registers, fiber_main, 0);
#else
    void** top = reinterpret_cast<void**>(f.stack + kStackBytes);
    *--top = nullptr;  // keeps the stack aligned as after a call
    *--top = reinterpret_cast<void*>(&fiber_main);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    f.context.sp = top;
#endif
    f.context.fake_stack = nullptr;
    f.context.bottom = f.stack;
    f.context.bytes = kStackBytes;
}

inline Block* take_block() {
    if (!pool.empty()) {
        Block* b = pool.back();
        pool.pop_back();
        return b;
    }
    return new Block;
}

// Makes a block ready to run: fresh stacks, and shared memory that holds no useful value.
inline void start_block(Block& b, Dim3 index) {
    b.index = index;
    b.threads = b.live = run->block.x * run->block.y * run->block.z;
    if (b.fibers.empty()) {
        b.fibers.assign(b.threads, Fiber());
        for (Fiber& f : b.fibers) {
            char* low = static_cast<char*>(mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
            if (low == MAP_FAILED) give_up("no memory for the stacks of %d threads: %s", b.threads, strerror(errno));
            f.stack = low + kGuardBytes;
            if (mprotect(low, kGuardBytes, PROT_NONE)) give_up("no guard behind the stack of a thread: %s", strerror(errno));
        }
    }
    b.ready.clear();
    b.meetings.assign((b.threads + 31) / 32, {});
    b.at_barrier = 0;
    b.clocks = races::start_block(b.clocks, b.threads);
    for (int i = 0; i < b.threads; ++i) {
        Fiber& f = b.fibers[i];
        f.index = i;
        f.thread = {i % run->block.x, i / run->block.x % run->block.y, i / (run->block.x * run->block.y)};
        f.done = false;
        f.waits = {};
        f.copies.clear(), f.groups.clear(), f.open_copies = 0;
        prepare(f);
        b.ready.push_back(&f);
    }
    free(b.dynamic);
    b.dynamic = nullptr;
    if (run->shared) {
        if (posix_memalign(reinterpret_cast<void**>(&b.dynamic), 128, run->shared)) give_up("no memory for shared memory");
        memset(b.dynamic, 0xff, run->shared);  // NaN, -1
    }
    if (!b.statics && posix_memalign(reinterpret_cast<void**>(&b.statics), 128, kStaticBytes)) give_up("no memory for shared memory");
#if SHIM_ASAN
    ASAN_UNPOISON_MEMORY_REGION(b.statics, kStaticBytes);
#endif
    memset(b.statics, static_cast<char>(random_bits() | 0x81), kStaticBytes);
#if SHIM_ASAN
    ASAN_POISON_MEMORY_REGION(b.statics, kStaticBytes);  // each variable is opened where it is declared
#endif
}

inline void report_deadlock() {
    std::string text = "deadlock: no thread can run;";
    for (Block* b : run->running) {
        run->current_block = b;
        int listed = 0;
        for (Fiber& f : b->fibers)
            if (!f.done && listed < 4) text += (listed++ ? "; " : " ") + place(f) + " waits for " + text_of(f.waits);
    }
    snprintf(run->error, sizeof run->error, "%s", text.c_str());
    run->failed = true;
}

inline void run_blocks(unsigned resident) {
    const uint64_t blocks = static_cast<uint64_t>(run->grid.x) * run->grid.y * run->grid.z;
    for (uint64_t next = 0; !run->failed;) {
        while (next < blocks && run->running.size() < resident) {
            Block* b = take_block();
            run->running.push_back(b);
            b->number = next;
            start_block(*b, {static_cast<unsigned>(next % run->grid.x), static_cast<unsigned>(next / run->grid.x % run->grid.y),
                             static_cast<unsigned>(next / (static_cast<uint64_t>(run->grid.x) * run->grid.y))});
            ++next;
        }
        if (run->running.empty()) return;
        std::vector<size_t> able;
        for (size_t i = 0; i < run->running.size(); ++i)
            if (!run->running[i]->ready.empty()) able.push_back(i);
        if (able.empty()) return report_deadlock();
        const size_t at = able[random_below(able.size())];
        Block* b = run->running[at];
        run->current_block = b;
        blockIdx = b->index;
        Fiber* f = pick(*b);
        enter(f);
        jump(run->main, f->context);
        if (!run->failed && b->live == 0) {
            run->running.erase(run->running.begin() + at);
            pool.push_back(b);
        }
    }
}

}  // namespace shim
}  // namespace
