// Launches that were prepared for one product, of operands at any addresses; known.cpp includes this file.
//
// Python has filled in all arguments of the kernel. A launch copies them, writes the addresses of this call
// into the copy, and calls the driver. There are no headers of CUDA where PyTorch is installed: what is used
// of its ABI is declared here, and the functions are given by Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace harness {

constexpr int64_t TMA = 16;      // bytes: addresses that have a tensor map are multiples of it
constexpr int64_t MOST = 4096;   // bytes of a kernel's arguments, all together
constexpr int64_t OPERANDS = 4;  // a, b, out and a bias
constexpr int64_t ALIGNMENTS = 8;  // of a, b and out: a bit for each that begins at a multiple of TMA
constexpr size_t ATTRIBUTE = 9;  // words of a CUlaunchAttribute

struct Config {  // CUlaunchConfig
    uint32_t grid_block_shared[7];
    void* stream;
    const void* attributes;
    uint32_t count;
};
static_assert(sizeof(Config) == 56);

struct Driver {
    int (*launch)(const Config*, void* function, void** arguments, void** extra);  // cuLaunchKernelEx
    int (*move)(void* map, void* address);                     // cuTensorMapReplaceAddress
    int (*current)(void** context);                            // cuCtxGetCurrent
    int (*identify)(void* stream, unsigned long long* id);     // cuStreamGetId
    int (*capturing)(void* stream, int* status);               // cuStreamIsCapturing
    void* (*stream)(const c10::Stream*);                       // c10::cuda::CUDAStream::stream
};

// The address of an operand among the arguments, or a tensor map of it.
struct Place {
    int64_t offset;   // in the arguments' memory
    int64_t operand;  // 0 a, 1 b, 2 out, 3 bias
};

// What Python says of a launch; `known.py` has the same fields. A room is a workspace kept for a stream.
struct Image {
    void *function, *context;
    const Config* config;
    const char* memory;
    int64_t size, arguments;
    const int64_t* offsets;
    int64_t pointers;
    const Place* pointer;
    int64_t maps;
    const Place* map;
    int64_t aligned;  // which of the alignments it is for
    int64_t own;      // the offset of the workspace's address, or -1
    unsigned long long stream;  // the room's
    uint64_t room;    // its address, or 0
};

inline int64_t aligned(const uint64_t* addresses) {
    int64_t bits = 0;
    for (int64_t i = 0; i < 3; ++i) bits |= static_cast<int64_t>(addresses[i] % TMA == 0) << i;
    return bits;
}

// The memory that a tensor's elements lie in: its first byte, and the one after its last.
inline std::pair<uint64_t, uint64_t> extent(const at::Tensor& x) {
    const auto begin = reinterpret_cast<uint64_t>(x.const_data_ptr());
    int64_t last = 0;
    for (int64_t i = 0; i < x.dim(); ++i) last += (x.size(i) - 1) * x.stride(i);
    return {begin, begin + (last + 1) * x.itemsize()};
}

class Launch {
public:
    explicit Launch(const Image& image)
        : function_(image.function), context_(image.context), own_(image.own), config_(*image.config),
          attributes_(words(image), words(image) + ATTRIBUTE * image.config->count),
          memory_(image.memory, image.memory + image.size),
          offsets_(image.offsets, image.offsets + image.arguments),
          pointers_(image.pointer, image.pointer + image.pointers), maps_(image.map, image.map + image.maps) {
        config_.attributes = attributes_.data();
        keep(image);
    }
    Launch(const Launch&) = delete;

    // Keeps the room that an image of the same launch has, if it is of a further stream.
    void keep(const Image& image) {
        if (image.room == 0 || image.function != function_) return;
        for (const auto& [owner, address] : rooms_)
            if (owner == image.stream) return;
        rooms_.emplace_back(image.stream, image.room);
    }

    void forget_rooms() { rooms_.clear(); }

    // Queues the product on the current stream of `device`. False if anything is not as Python found it: then
    // nothing was queued.
    bool queue(const Driver& driver, c10::Device device, const uint64_t* addresses) const {
        void* current = nullptr;
        if (driver.current(&current) != 0 || current != context_) return false;
        const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
        Config config = config_;
        config.stream = driver.stream(&stream);
        uint64_t room = 0;
        if (own_ >= 0 && (room = found(driver, config.stream)) == 0) return false;

        alignas(128) char memory[MOST];  // tensor maps want 64
        std::memcpy(memory, memory_.data(), memory_.size());
        const auto write = [&](int64_t offset, uint64_t address) {
            std::memcpy(memory + offset, &address, sizeof address);
        };
        for (const auto& one : pointers_) write(one.offset, addresses[one.operand]);
        for (const auto& one : maps_)
            if (driver.move(memory + one.offset, reinterpret_cast<void*>(addresses[one.operand])) != 0)
                return false;
        if (room != 0) write(own_, room);
        void* arguments[MOST / 4];
        for (size_t i = 0; i < offsets_.size(); ++i) arguments[i] = memory + offsets_[i];
        return driver.launch(&config, function_, arguments, nullptr) == 0;
    }

private:
    static const uint64_t* words(const Image& image) {
        return static_cast<const uint64_t*>(image.config->attributes);
    }

    // Returns the room of a stream, or 0. A graph that is captured has memory of its own, which Python makes.
    uint64_t found(const Driver& driver, void* stream) const {
        int status = 0;
        unsigned long long id = 0;
        if (driver.capturing(stream, &status) != 0 || status != 0 || driver.identify(stream, &id) != 0) return 0;
        for (const auto& [owner, address] : rooms_)
            if (owner == id) return address;
        return 0;
    }

    void *function_, *context_;
    int64_t own_;
    Config config_;
    std::vector<uint64_t> attributes_;
    std::vector<char> memory_;
    std::vector<int64_t> offsets_;
    std::vector<Place> pointers_, maps_;
    std::vector<std::pair<unsigned long long, uint64_t>> rooms_;
};

}  // namespace harness
