// Finds data races: two accesses to the same bytes, one of them a write, that nothing orders, however
// they happened to come. The kernels are compiled with -fsanitize=thread, whose calls before each
// load and store arrive here instead of in its library.
//
// Time: the threads of a block have a stamp, which rises whenever they synchronize. An access is
// ordered before one of another thread if since then
//   the block passed a barrier, which orders all of it,
//   both lanes met in a warp operation, or were led together by such meetings, or
//   its thread, or one ordered behind it, wrote a word atomically behind a __threadfence, and the
//   other thread read that word and passed a __threadfence itself.
// Every 4 bytes, or every byte where threads access less, remember their last writers and readers.
#include "races.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

extern "C" {
extern char __ehdr_start __attribute__((visibility("hidden")));
extern char _end __attribute__((visibility("hidden")));
}

namespace races {

Watch watch;

namespace {

// Threads and blocks up to which time what they did is known: block << 16 | thread, or | kAll.
using Knowledge = std::map<uint64_t, uint32_t>;
constexpr uint64_t kAll = 0xffff;
constexpr size_t kPage = 1024;      // bytes of memory whose cells lie together
constexpr size_t kReported = 6;     // races of a launch

void join(Knowledge& into, const Knowledge& from) {
    for (const auto& entry : from) {
        uint32_t& stamp = into[entry.first];
        stamp = std::max(stamp, entry.second);
    }
}

struct Thread {
    uint32_t stamp = 1;
    uint32_t known[32] = {};  // up to which stamp the lanes of its warp are ordered before it
    Knowledge knows;          // the same of other threads, by words in global memory
    Knowledge read;           // what such words told it since its last fence
    Knowledge fenced;         // what was ordered before its last fence
};

struct Record {  // of an access
    uint32_t block, stamp, code;
    uint16_t thread;
    uint8_t kind;
    bool used;
};
struct Cell {
    Record writes[2];  // the last one; one that it does not follow
    Record reads[4];   // the last one; of another lane, another warp, another block
};
struct Page {
    bool bytes = false;  // a cell a byte, not 4
    std::vector<Cell> cells{kPage / 4};
};
struct Slot {
    uintptr_t key = ~uintptr_t(0);
    Page* page = nullptr;
};

unsigned dims[3];
std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
Slot recent[4096];
std::unordered_map<uintptr_t, Knowledge> words;  // written behind fences
std::set<std::pair<uint32_t, uint32_t>> seen;
std::vector<std::string> found;

}  // namespace

struct Clocks {
    uint32_t clock = 1, last_barrier = 0;
    bool foreign = false;  // some thread knows of other blocks
    std::vector<Thread> threads;
};

namespace {

Page& page_of(uintptr_t key) {
    Slot& slot = recent[key % 4096];
    if (slot.key != key) {
        std::unique_ptr<Page>& page = pages[key];
        if (!page) page.reset(new Page);
        slot.key = key, slot.page = page.get();
    }
    return *slot.page;
}

void split(Page& page) {
    std::vector<Cell> fine(kPage);
    for (size_t i = 0; i < kPage; ++i) fine[i] = page.cells[i / 4];
    page.cells = std::move(fine);
    page.bytes = true;
}

bool covers(const Knowledge& knows, const Record& r) {
    auto all = knows.find(static_cast<uint64_t>(r.block) << 16 | kAll);
    if (all != knows.end() && r.stamp < all->second) return true;
    auto one = knows.find(static_cast<uint64_t>(r.block) << 16 | r.thread);
    return one != knows.end() && r.stamp <= one->second;
}

bool ordered(const Record& r, bool shared) {
    const Clocks& clocks = *watch.clocks;
    const Thread& mine = clocks.threads[watch.thread];
    if (r.block == watch.block) {
        if (r.thread == watch.thread || r.stamp < clocks.last_barrier) return true;
        if (r.thread / 32 == watch.thread / 32 && r.stamp <= mine.known[r.thread % 32]) return true;
    } else if (shared) {
        return true;  // of a block that is done
    }
    return covers(mine.knows, r);
}

std::string text_of(uint32_t block, unsigned thread) {
    char text[100];
    snprintf(text, sizeof text, "thread (%u, %u, %u) of block %u", thread % dims[0], thread / dims[0] % dims[1],
             thread / (dims[0] * dims[1]), block);
    return text;
}

void report(const Record& r, bool wrote, const char* at, Access access, Kind kind, uint32_t code) {
    if (found.size() >= kReported || !seen.insert({r.code, code}).second) return;
    char text[500], memory[100];
    if (at >= watch.dynamic && at < watch.dynamic_end)
        snprintf(memory, sizeof memory, "byte %td of dynamic shared memory", at - watch.dynamic);
    else if (at >= watch.statics && at < watch.statics_end)
        snprintf(memory, sizeof memory, "byte %td of static shared memory", at - watch.statics);
    else
        snprintf(memory, sizeof memory, "global memory at %p", static_cast<const void*>(at));
    const char* how = r.kind == FLYING ? ", by an asynchronous copy that is still on its way" : "";
    const char* why = kind == CACHED || r.kind == CACHED ? "__ldg is for what no thread writes" : "nothing orders the two";
    snprintf(text, sizeof text, "%s %s %s at {code %x}, which %s %s at {code %x}%s: %s", text_of(watch.block, watch.thread).c_str(),
             access == READ ? "reads" : kind == STRONG ? "updates" : "writes", memory, code, text_of(r.block, r.thread).c_str(),
             !wrote ? "read" : r.kind == STRONG ? "updated" : "wrote", r.code, how, why);
    found.push_back(text);
}

void look(Cell& cell, const char* at, Access access, Kind kind, uint32_t code, bool shared) {
    const Clocks& clocks = *watch.clocks;
    const Record now = {watch.block, clocks.threads[watch.thread].stamp, code, static_cast<uint16_t>(watch.thread), kind, true};
    const bool writes = access != READ;
    auto mine = [&](const Record& r) { return r.block == now.block && r.thread == now.thread; };
    for (const Record& r : cell.writes) {
        if (!r.used || (kind == ARRIVED && r.kind == FLYING && mine(r))) continue;
        const bool strong = kind == STRONG && r.kind == STRONG, here = r.block == now.block;
        if ((r.kind == FLYING && here) || (kind == CACHED && !(shared && !here)) || (!strong && !ordered(r, shared)))
            report(r, true, at, access, kind, code);
    }
    if (!writes) {
        Record& last = cell.reads[0];
        if (last.used && !mine(last))
            cell.reads[last.block != now.block ? 3 : last.thread / 32 != now.thread / 32 ? 2 : 1] = last;
        last = now;
        return;
    }
    for (const Record& r : cell.reads)
        if (r.used && !(kind == STRONG && r.kind == STRONG) && (r.kind == CACHED ? !shared : !ordered(r, shared)))
            report(r, false, at, access, kind, code);
    Record &last = cell.writes[0], &other = cell.writes[1];
    if (last.used && kind == STRONG && !ordered(last, shared)) {
        const bool near = last.block == now.block && last.thread / 32 == now.thread / 32;
        if (!(near && other.used && !ordered(other, shared))) other = last;
    } else if (kind != STRONG) {
        other.used = false;
    }
    last = now;
    if (kind == ARRIVED) last.kind = PLAIN;
    if (kind != STRONG)
        for (Record& r : cell.reads) r.used = false;
}

}  // namespace

void begin(const unsigned* block) {
    memcpy(dims, block, sizeof dims);
    watch = Watch();
    seen.clear(), found.clear();
}

bool end(char* error, size_t capacity) {
    watch = Watch();
    pages.clear(), words.clear();
    for (Slot& slot : recent) slot = Slot();
    if (found.empty()) return false;
    std::string all = "race: " + found[0];
    for (size_t i = 1; i < found.size(); ++i) all += "; " + found[i];
    snprintf(error, capacity, "%s", all.c_str());
    return true;
}

Clocks* start_block(Clocks* old, unsigned threads) {
    Clocks* clocks = old ? old : new Clocks;
    clocks->clock = 1, clocks->last_barrier = 0, clocks->foreign = false;
    clocks->threads.assign(threads, Thread());
    return clocks;
}

void release(Clocks* clocks) { delete clocks; }

void barrier(Clocks& clocks) {
    clocks.last_barrier = ++clocks.clock;
    for (Thread& t : clocks.threads) t.stamp = clocks.clock;
    if (!clocks.foreign) return;
    Knowledge all;
    for (const Thread& t : clocks.threads) join(all, t.knows);
    for (Thread& t : clocks.threads) t.knows = all;
}

void meet(Clocks& clocks, unsigned first, uint32_t mask) {
    uint32_t known[32] = {};
    Knowledge all;
    ++clocks.clock;
    for (int i = 0; i < 32; ++i) {
        if (!(mask >> i & 1u)) continue;
        Thread& t = clocks.threads[first + i];
        t.known[i] = t.stamp;
        for (int j = 0; j < 32; ++j) known[j] = std::max(known[j], t.known[j]);
        if (clocks.foreign) join(all, t.knows);
    }
    for (int i = 0; i < 32; ++i) {
        if (!(mask >> i & 1u)) continue;
        Thread& t = clocks.threads[first + i];
        memcpy(t.known, known, sizeof known);
        t.stamp = clocks.clock;
        if (clocks.foreign) t.knows = all;
    }
}

void fence() {
    Clocks& clocks = *watch.clocks;
    Thread& t = clocks.threads[watch.thread];
    clocks.foreign |= !t.read.empty();
    join(t.knows, t.read);
    t.read.clear();
    t.fenced = t.knows;
    const uint64_t block = static_cast<uint64_t>(watch.block) << 16;
    t.fenced[block | kAll] = clocks.last_barrier;
    for (unsigned i = 0; i < 32; ++i)
        if (t.known[i]) t.fenced[block | (watch.thread / 32 * 32 + i)] = t.known[i];
    t.fenced[block | watch.thread] = t.stamp;
    t.stamp = ++clocks.clock;
}

__attribute__((noinline)) uint32_t here() {
    return static_cast<uint32_t>(static_cast<char*>(__builtin_return_address(0)) - 1 - &__ehdr_start);
}

void touch(const void* address, size_t bytes, Access access, Kind kind, uint32_t code) {
    const char* at = static_cast<const char*>(address);
    if (at >= watch.stack && at < watch.stack_end) return;
    if (at >= &__ehdr_start && at < &_end) return;
    const bool shared = (at >= watch.dynamic && at < watch.dynamic_end) || (at >= watch.statics && at < watch.statics_end);
    const uintptr_t begin = reinterpret_cast<uintptr_t>(at), end = begin + bytes;
    for (uintptr_t p = begin; p < end;) {
        Page& page = page_of(p / kPage);
        if (!page.bytes && (p % 4 || end - p < 4)) split(page);
        const size_t step = page.bytes ? 1 : 4;
        look(page.cells[p % kPage / step], reinterpret_cast<const char*>(p), access, kind, code, shared);
        p += step;
    }
    if (kind != STRONG) return;
    Thread& t = watch.clocks->threads[watch.thread];
    if (access != WRITE && !words.empty()) {
        auto word = words.find(begin);
        if (word != words.end()) join(t.read, word->second);
    }
    if (access != READ && !t.fenced.empty()) join(words[begin], t.fenced);
}

}  // namespace races

// ---- what -fsanitize=thread calls ----------------------------------------------------------------

#define SHIM_HOOK(name, size, access, kind)                                                                            \
    extern "C" void __tsan_##name##size(void* at) {                                                                    \
        if (races::watch.on)                                                                                           \
            races::touch(at, size, races::access, races::kind,                                                         \
                         static_cast<uint32_t>(static_cast<char*>(__builtin_return_address(0)) - 1 - &__ehdr_start));   \
    }
#define SHIM_HOOKS(size)                            \
    SHIM_HOOK(read, size, READ, PLAIN)              \
    SHIM_HOOK(write, size, WRITE, PLAIN)            \
    SHIM_HOOK(volatile_read, size, READ, STRONG)    \
    SHIM_HOOK(volatile_write, size, WRITE, STRONG)
#define SHIM_UNALIGNED(size)                                  \
    SHIM_HOOK(unaligned_read, size, READ, PLAIN)              \
    SHIM_HOOK(unaligned_write, size, WRITE, PLAIN)            \
    SHIM_HOOK(unaligned_volatile_read, size, READ, STRONG)    \
    SHIM_HOOK(unaligned_volatile_write, size, WRITE, STRONG)
SHIM_HOOKS(1)
SHIM_HOOKS(2)
SHIM_HOOKS(4)
SHIM_HOOKS(8)
SHIM_HOOKS(16)
SHIM_UNALIGNED(2)
SHIM_UNALIGNED(4)
SHIM_UNALIGNED(8)
SHIM_UNALIGNED(16)
extern "C" void __tsan_init() {}
extern "C" void __tsan_read_range(void* at, size_t bytes) {
    if (races::watch.on)
        races::touch(at, bytes, races::READ, races::PLAIN,
                     static_cast<uint32_t>(static_cast<char*>(__builtin_return_address(0)) - 1 - &__ehdr_start));
}
extern "C" void __tsan_write_range(void* at, size_t bytes) {
    if (races::watch.on)
        races::touch(at, bytes, races::WRITE, races::PLAIN,
                     static_cast<uint32_t>(static_cast<char*>(__builtin_return_address(0)) - 1 - &__ehdr_start));
}
