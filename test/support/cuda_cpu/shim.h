// CUDA on the CPU: include before a kernel source, inside which DRIVERT_CPU_SHIM is defined.
#pragma once
#define DRIVERT_CPU_SHIM 1
#define __CUDA_ARCH__ 800
#include "copies.h"
#include "fragments.h"

namespace {
namespace shim {

struct Kernel {
    const char* name;
    void* function;
    Invoke invoke;
    std::vector<int> sizes;  // bytes of each parameter
};

template <typename... A, size_t... I>
void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
    kernel(*static_cast<typename std::remove_const<A>::type*>(args[I])...);
}
template <typename... A>
void invoke(void* kernel, void** args) {
    call(reinterpret_cast<void (*)(A...)>(kernel), args, std::index_sequence_for<A...>());
}
template <typename... A>
Kernel kernel(const char* name, void (*function)(A...)) {
    return {name, reinterpret_cast<void*>(function), invoke<A...>, {static_cast<int>(sizeof(A))...}};
}

// ---- faults ------------------------------------------------------------------------------------

// Another thread of the process may have to run it, so the race detector is not told to look away.
__attribute__((no_sanitize_thread)) void on_signal(int number, siginfo_t* info, void*) {
    if (!run) return;
    if (number == SIGVTALRM) {
        run->idle_ticks = run->switches == run->seen_switches ? run->idle_ticks + 1 : 0;
        run->seen_switches = run->switches;
        if (run->idle_ticks < kWatchdogSeconds) return;
    }
    const Dim3 t = run->current ? run->current->thread : Dim3{};
    char what[80];
    if (number == SIGVTALRM)
        snprintf(what, sizeof what, "has run for %d s without a barrier or yield", kWatchdogSeconds);
    else
        snprintf(what, sizeof what, "touched the address %p", info->si_addr);
    snprintf(run->error, sizeof run->error, "thread (%u, %u, %u) of block (%u, %u, %u) %s", t.x, t.y, t.z, blockIdx.x,
             blockIdx.y, blockIdx.z, what);
    run->failed = true;
    siglongjmp(run->rescue, 1);
}

// While it lives, a kernel that hangs or touches unmapped memory ends its launch, not the process.
struct Guard {
    struct sigaction old_alarm, old_fault;
    itimerval old_timer;
    stack_t old_stack;
    Guard() {
        static char handler_stack[64 * 1024];
        stack_t own = {};
        own.ss_sp = handler_stack, own.ss_size = sizeof handler_stack;
        sigaltstack(&own, &old_stack);
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGVTALRM, &action, &old_alarm);
        if (!SHIM_ASAN) sigaction(SIGSEGV, &action, &old_fault);
        const itimerval second = {{1, 0}, {1, 0}};
        setitimer(ITIMER_VIRTUAL, &second, &old_timer);
    }
    ~Guard() {
        setitimer(ITIMER_VIRTUAL, &old_timer, nullptr);
        if (old_alarm.sa_handler == SIG_DFL) old_alarm.sa_handler = SIG_IGN;  // a late alarm would end the process
        sigaction(SIGVTALRM, &old_alarm, nullptr);
        if (!SHIM_ASAN) sigaction(SIGSEGV, &old_fault, nullptr);
        sigaltstack(&old_stack, nullptr);
    }
};

inline void release(Block* b) {
    for (Fiber& f : b->fibers) {
        if (!f.stack) continue;
#if SHIM_ASAN
        ASAN_UNPOISON_MEMORY_REGION(f.stack, kStackBytes);
#endif
        munmap(f.stack - kGuardBytes, kStackBytes + kGuardBytes);
    }
#if SHIM_ASAN
    ASAN_UNPOISON_MEMORY_REGION(b->statics, kStaticBytes);
#endif
    free(b->dynamic);
    free(b->statics);
    races::release(b->clocks);
    delete b;
}

inline void find_main_stack(Context& main) {
    pthread_attr_t attributes;
    void* low;
    size_t bytes;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &low, &bytes);
    pthread_attr_destroy(&attributes);
    main.bottom = low, main.bytes = bytes;
}

}  // namespace shim
}  // namespace

#define SHIM_EXPORT extern "C" __attribute__((visibility("default")))
#define SHIM_KERNELS(...)                                                                                            \
    namespace {                                                                                                      \
    const std::vector<shim::Kernel>& shim_kernels() {                                                                \
        static const std::vector<shim::Kernel> all = {__VA_ARGS__};                                                  \
        return all;                                                                                                  \
    }                                                                                                                \
    }                                                                                                                \
    SHIM_EXPORT int shim_parameter_sizes(const char* name, int* sizes, int capacity) {                               \
        for (const shim::Kernel& k : shim_kernels())                                                                 \
            if (!strcmp(k.name, name)) {                                                                             \
                for (size_t i = 0; i < k.sizes.size() && static_cast<int>(i) < capacity; ++i) sizes[i] = k.sizes[i]; \
                return static_cast<int>(k.sizes.size());                                                             \
            }                                                                                                        \
        return -1;                                                                                                   \
    }                                                                                                                \
    SHIM_EXPORT int shim_launch(const char* name, const unsigned* grid, const unsigned* block, unsigned shared,      \
                                unsigned long long seed, unsigned resident, void** args, char* error, int capacity) { \
        for (const shim::Kernel& k : shim_kernels())                                                                 \
            if (!strcmp(k.name, name)) return shim::launch(k, grid, block, shared, seed, resident, args, error, capacity); \
        return -1;                                                                                                   \
    }

namespace {
namespace shim {

// Returns 0, or 1 with a message in `error`.
int launch(const Kernel& k, const unsigned* grid, const unsigned* block, unsigned shared, unsigned long long seed,
           unsigned resident, void** args, char* error, int capacity) {
    Run* mine = new Run;
    mine->name = k.name, mine->kernel = k.function, mine->invoke = k.invoke, mine->args = args;
    mine->grid = {grid[0], grid[1], grid[2]};
    mine->block = {block[0], block[1], block[2]};
    mine->shared = shared;
    mine->random = (seed + 1) * 0x9e3779b97f4a7c15ull | 1;
    find_main_stack(mine->main);
    run = mine;
    gridDim = mine->grid, blockDim = mine->block;
    races::begin(block);
    {
        Guard guard;
        if (sigsetjmp(mine->rescue, 1) == 0) run_blocks(resident);
    }
    run = nullptr;
    for (Block* b : mine->running) release(b);
    for (Block* b : pool) release(b);  // a process may map only so many stacks, and has many modules
    pool.clear();
    const bool raced = races::end(error, capacity), failed = mine->failed || raced;
    if (mine->failed) snprintf(error, capacity, "%s", mine->error);
    delete mine;
    return failed;
}

}  // namespace shim
}  // namespace
