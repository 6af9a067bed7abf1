// The operators of NanoVDB's own CUDA headers as a library for benchmarks/bench_grid.py.
//
// benchmarks/peers_openvdb.py compiles it against a folder that holds nanovdb/NanoVDB.h and calls it.
//
// Each function does one operator `rounds` times on buffers of the caller and writes into `us` how
// many microseconds each call took, by a clock of the host, until the stream was empty. A call is
// what a user of those headers writes. What it allocates inside cannot be taken out of it, but may
// be kept by the memory pool (`peer_keep_memory`), which is its best case. Returns 0, or 1 where
// `peer_error` tells why.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

// The headers end the process where CUDA fails; here that is an error like any other.
[[noreturn]] static void leave(int code) { throw std::runtime_error("CUDA error " + std::to_string(code)); }
#define exit leave
#include <nanovdb/NanoVDB.h>
#include <nanovdb/cuda/DeviceBuffer.h>
#include <nanovdb/cuda/GridHandle.cuh>
#include <nanovdb/tools/cuda/GridChecksum.cuh>
#include <nanovdb/tools/cuda/GridStats.cuh>
#include <nanovdb/tools/cuda/IndexToGrid.cuh>
#undef exit

#define PEER extern "C" __attribute__((visibility("default")))

using Index = nanovdb::ValueOnIndex;

// Memory that is there already: a result of the benchmark's, and its first bytes on the host, which
// spare the handle an allocation and two copies.
class Reserved {
  public:
    Reserved() = default;
    Reserved(void* device, void* host, uint64_t bytes) : mDevice(device), mHost(host), mBytes(bytes) {}
    Reserved(const Reserved&) = delete;
    Reserved& operator=(const Reserved&) = delete;
    Reserved(Reserved&& other) noexcept { *this = std::move(other); }
    Reserved& operator=(Reserved&& other) noexcept {
        mDevice = other.mDevice, mHost = other.mHost, mBytes = other.mBytes;
        return *this;
    }
    static Reserved create(uint64_t bytes, const Reserved* pool, int, cudaStream_t) {
        if (bytes != pool->mBytes) throw std::runtime_error("the result has another size than ours");
        return Reserved(pool->mDevice, pool->mHost, bytes);
    }
    void* data() const { return mHost; }
    void* deviceData() const { return mDevice; }
    uint64_t size() const { return mBytes; }
    bool empty() const { return mBytes == 0; }
    void clear() { mDevice = mHost = nullptr, mBytes = 0; }

  private:
    void *mDevice = nullptr, *mHost = nullptr;
    uint64_t mBytes = 0;
};

namespace nanovdb {
template <>
struct BufferTraits<Reserved> {
    static constexpr bool hasDeviceDual = true;
};
}  // namespace nanovdb

static std::string gError;

static void check(cudaError_t code, const char* doing) {
    if (code != cudaSuccess) throw std::runtime_error(std::string(cudaGetErrorString(code)) + " while " + doing);
}

template <typename Work>
static int timed(int rounds, double* us, Work work) {
    try {
        for (int i = -2; i < rounds; ++i) {  // the first two warm
            check(cudaStreamSynchronize(0), "waiting before a call");
            const auto begin = std::chrono::steady_clock::now();
            work();
            check(cudaStreamSynchronize(0), "waiting for a call");
            const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin;
            if (i >= 0) us[i] = spent.count();
        }
        return 0;
    } catch (const std::exception& error) {
        gError = error.what();
        return 1;
    }
}

PEER const char* peer_error() { return gError.c_str(); }

// Keep what is freed in the memory pool of the device, or give it back at every wait as it comes.
PEER int peer_keep_memory(int keep) {
    return timed(0, nullptr, [&] {
        int device = 0;
        check(cudaGetDevice(&device), "asking for the device");
        cudaMemPool_t pool;
        check(cudaDeviceGetDefaultMemPool(&pool, device), "asking for the memory pool");
        uint64_t threshold = keep ? UINT64_MAX : 0;
        check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), "setting up the pool");
    });
}

// CRC-32 of head and tail, on the host.
PEER int peer_checksum(const void* grid, uint32_t* head_tail, int rounds, double* us) {
    return timed(rounds, us, [&] {
        auto* data = static_cast<const nanovdb::GridData*>(grid);
        nanovdb::Checksum found = nanovdb::tools::cuda::evalChecksum(data, nanovdb::CheckMode::Full, 0);
        check(cudaStreamSynchronize(0), "waiting for the checksum");
        head_tail[0] = found.head(), head_tail[1] = found.tail();
    });
}

// Statistics and boxes, into the nodes of a grid of floats.
PEER int peer_statistics(void* grid, int moments, int rounds, double* us) {
    using nanovdb::tools::StatsMode;
    return timed(rounds, us, [&] {
        auto* data = static_cast<nanovdb::NanoGrid<float>*>(grid);
        nanovdb::tools::cuda::updateGridStats(data, moments ? StatsMode::All : StatsMode::MinMax, 0);
    });
}

// A grid of floats from an index grid and its values, into memory that is there already.
PEER int peer_index_to_grid(const void* index, const float* values, void* out, uint64_t bytes, int rounds,
                                  double* us) {
    using nanovdb::tools::cuda::IndexToGrid;
    nanovdb::GridData host;
    auto once = [&] {
        const Reserved pool(out, &host, bytes);
        IndexToGrid<Index> converter(static_cast<const nanovdb::NanoGrid<Index>*>(index), 0);
        converter.getHandle<float, Reserved>(values, pool);
    };
    // The head that a handle wants to see is that of the source, which the operator copies.
    const int failed = timed(0, us, [&] {
        check(cudaMemcpy(&host, index, sizeof(host), cudaMemcpyDeviceToHost), "reading the head");
    });
    return failed ? failed : timed(rounds, us, once);
}

// The same as it comes, the memory of the result allocated and freed by each call.
PEER int peer_index_to_grid_allocating(const void* index, const float* values, int rounds, double* us) {
    return timed(rounds, us, [&] {
        auto* source = static_cast<const nanovdb::NanoGrid<Index>*>(index);
        auto made = nanovdb::tools::cuda::indexToGrid<float, Index>(source, values, nanovdb::cuda::DeviceBuffer(), 0);
    });
}
