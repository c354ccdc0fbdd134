// What is known of products, by all that a decision depends on; known.cpp includes this file.
#pragma once

#include "launches.h"

#include <ATen/core/ivalue.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>

namespace harness {

constexpr size_t WORDS = 48;  // for four tensors and two scalars 46 are used
constexpr size_t DIMS = 4;    // of a tensor: a layer's input may have more than two
constexpr int64_t FULL = -1, NONE = -2;

struct Key {
    size_t size = 0;
    uint64_t hash = 0;
    int64_t words[WORDS];

    void add(int64_t word) {
        words[size++] = word;
        hash = (hash ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15;
        hash ^= hash >> 29;
    }

    bool operator==(const Key& other) const {
        return size == other.size && std::memcmp(words, other.words, size * sizeof *words) == 0;
    }

    // Adds what a tensor is; false if that cannot be said in numbers. The set of dispatch keys tells all
    // kinds of tensors apart: it may make two keys of one decision, and never one of two.
    bool add(const c10::TensorImpl& x) {
        if (x.has_symbolic_sizes_strides() || x.key_set().empty() || x.layout() != c10::kStrided)
            return false;
        const auto sizes = x.sizes(), strides = x.strides();
        if (sizes.size() > DIMS) return false;
        const auto type = c10::typeMetaToScalarType(x.dtype());
        const auto place = x.device();
        add(static_cast<int64_t>(x.key_set().raw_repr()));
        add(static_cast<int64_t>(type) | static_cast<int64_t>(place.type()) << 8 |
            static_cast<int64_t>(sizes.size()) << 16 | static_cast<int64_t>(place.index()) << 24);
        for (size_t i = 0; i < sizes.size(); ++i) {
            add(sizes[i]);
            add(strides[i]);
        }
        return true;
    }

    // Adds what is no tensor, with its type: 1, 1.0 and true need not be decided alike.
    bool add(const c10::IValue& x) {
        if (x.isNone()) {
            add(int64_t{0});  // no set of dispatch keys is that
            return true;
        }
        if (x.isString()) return add(x.toStringRef());
        const double real = x.isDouble() ? x.toDouble() : 0;
        int64_t bits = 0;
        std::memcpy(&bits, &real, sizeof bits);
        if (!x.isDouble() && !x.isInt() && !x.isBool()) return false;  // complex, or a symbol
        add(static_cast<int64_t>(x.isDouble() ? 0 : x.isInt() ? 1 : 2));
        add(x.isDouble() ? bits : x.isInt() ? x.toInt() : static_cast<int64_t>(x.toBool()));
        return true;
    }

    bool add(const std::string& text) {  // the name of an option
        int64_t letters[2] = {};
        if (text.size() > sizeof letters) return false;
        std::memcpy(letters, text.data(), text.size());
        add(static_cast<int64_t>(text.size()));
        for (const auto word : letters) add(word);
        return true;
    }
};

struct Hash {
    size_t operator()(const Key& key) const { return key.hash; }
};

enum class Way { ASK, STAY, LAUNCH };

// The decisions of one block, or those of the registered operators. Counts change under the shared lock, so
// that none is lost as they are drained.
struct Table {
    struct Entry {
        std::atomic<int64_t> calls{0};
        bool ours = false;
        std::unique_ptr<Launch> launches[ALIGNMENTS];  // each by a plan of its own
    };

    std::shared_mutex mutex;
    std::unordered_map<Key, size_t, Hash> places;
    std::deque<Entry> entries;  // the first `used` of them; entries cannot move
    size_t used = 0, most = 0;
    int64_t rooms = 0;  // how often all rooms were forgotten
    Driver driver{};
    std::atomic<int64_t> block{0};      // the number of this block, a part of each key
    std::atomic<bool> by_setting{false};  // PyTorch's setting decides how float32 is multiplied

    Entry* find(const Key& key) {  // under a lock
        const auto found = places.find(key);
        return found == places.end() ? nullptr : &entries[found->second];
    }

    // Says which way a product goes; one that is PyTorch's is counted.
    Way way(const Key& key) {
        std::shared_lock lock(mutex);
        Entry* const found = find(key);
        if (found == nullptr) return Way::ASK;
        if (found->ours) return Way::LAUNCH;
        found->calls.fetch_add(1, std::memory_order_relaxed);
        return Way::STAY;
    }

    // Launches a product and counts it. False if it is to be asked for: then nothing was queued.
    bool launch(const Key& key, c10::Device device, const uint64_t* addresses) {
        std::shared_lock lock(mutex);  // so that no room is freed meanwhile
        Entry* const found = find(key);
        if (found == nullptr) return false;
        const auto& launch = found->launches[aligned(addresses)];
        if (launch == nullptr || !launch->queue(driver, device, addresses)) return false;
        found->calls.fetch_add(1, std::memory_order_relaxed);
        return true;
    }

    // Returns the place of a product. It is a new one if the product went another way before, for its calls
    // are counted apart.
    int64_t add(const Key& key, const Image* image, int64_t since) {
        std::unique_lock lock(mutex);
        Image given = image == nullptr ? Image{} : *image;
        if (since != rooms) given.room = 0;  // it may have been freed since Python looked
        Entry* found = find(key);
        const bool ours = image != nullptr;
        if (found == nullptr || found->ours != ours) {
            if (used >= most) return FULL;
            if (entries.size() == used) entries.emplace_back();
            places[key] = used;
            found = &entries[used++];
            found->ours = ours;
        }
        if (ours) {
            auto& launch = found->launches[given.aligned];
            if (launch == nullptr) launch = std::make_unique<Launch>(given);
            else launch->keep(given);
        }
        return static_cast<int64_t>(places[key]);
    }

    void forget() {  // under the lock
        places.clear();
        for (size_t i = 0; i < used; ++i)
            for (auto& launch : entries[i].launches) launch.reset();
        used = 0;
    }
};

}  // namespace harness
