// Products that were called before need no Python; known.py compiles and loads this file.
//
// Within `harness.torch.replace()` a kernel for each operator lies before the Python function that decides.
// It reads from the arguments all that a decision depends on, a key. A product that was decided to be
// PyTorch's is counted and goes to PyTorch's kernel; one of harness's is counted and launched. Any other goes
// to the Python function, which may call `harness_stay` or `harness_launch` meanwhile: from then on the key is
// known. Only headers of c10 and ATen are used, none of CUDA.
#include "launches.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

namespace {

constexpr size_t WORDS = 48;  // for four tensors and two scalars 38 are used
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
        if (sizes.size() > 3) return false;
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

    // Adds a scalar, with its type: 1, 1.0 and true need not be decided alike.
    bool add(const c10::IValue& x) {
        const double real = x.isDouble() ? x.toDouble() : 0;
        int64_t bits = 0;
        std::memcpy(&bits, &real, sizeof bits);
        if (!x.isDouble() && !x.isInt() && !x.isBool()) return false;  // complex, or a symbol
        add(static_cast<int64_t>(x.isDouble() ? 0 : x.isInt() ? 1 : 2));
        add(x.isDouble() ? bits : x.isInt() ? x.toInt() : static_cast<int64_t>(x.toBool()));
        return true;
    }
};

struct Hash {
    size_t operator()(const Key& key) const { return key.hash; }
};

enum class Way { ASK, STAY, LAUNCH };

// The decisions of one block. Counts change under the shared lock, so that none is lost as they are drained.
struct Table {
    struct Entry {
        std::atomic<int64_t> calls{0};
        bool ours = false;
        std::unique_ptr<harness::Launch> launches[harness::ALIGNMENTS];  // each by a plan of its own
    };

    std::shared_mutex mutex;
    std::unordered_map<Key, size_t, Hash> places;
    std::deque<Entry> entries;  // the first `used` of them; entries cannot move
    size_t used = 0, most = 0;
    int64_t rooms = 0;  // how often all rooms were forgotten
    harness::Driver driver{};
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
        const auto& launch = found->launches[harness::aligned(addresses)];
        if (launch == nullptr || !launch->queue(driver, device, addresses)) return false;
        found->calls.fetch_add(1, std::memory_order_relaxed);
        return true;
    }

    // Returns the place of a product. It is a new one if the product went another way before, for its calls
    // are counted apart.
    int64_t add(const Key& key, const harness::Image* image, int64_t since) {
        std::unique_lock lock(mutex);
        harness::Image given = image == nullptr ? harness::Image{} : *image;
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
            if (launch == nullptr) launch = std::make_unique<harness::Launch>(given);
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

Table& table = *new Table;  // never destroyed: other threads may still multiply while a process ends
thread_local const Key* pending = nullptr;  // that of the call which Python decides in this thread

struct Kernel final : c10::OperatorKernel {
    Kernel(const c10::OperatorHandle& op, c10::DispatchKey where, int64_t number)
        : number(number), arguments(op.schema().arguments().size()), where(where),
          added(op.schema().name().find("add") != std::string::npos),
          original(op.getComputedKernelForDispatchKey(where)) {}

    int64_t number;  // of the operator
    size_t arguments;
    c10::DispatchKey where;
    bool added;  // something is added to the product: the first argument
    c10::SafeKernelFunction original;
    std::shared_ptr<c10::SafeKernelFunction> python;  // none once the block has ended; under the lock

    bool read(Key& key, const c10::Stack& stack) const {
        bool float32 = false;
        key.add(table.block.load(std::memory_order_relaxed) << 8 | number);
        for (const auto& x : torch::jit::last(stack, arguments)) {
            if (!x.isTensor()) {
                if (!key.add(x)) return false;
                continue;
            }
            const auto& tensor = *x.unsafeToTensorImpl();
            if (!key.add(tensor)) return false;
            float32 = float32 || tensor.dtype() == caffe2::TypeMeta::Make<float>();
        }
        if (float32 && table.by_setting.load(std::memory_order_relaxed))
            key.add(static_cast<int64_t>(at::globalContext().float32Precision(
                at::Float32Backend::CUDA, at::Float32Op::MATMUL)));
        return true;
    }

    // Launches a product of two matrices that is known to be harness's, in place of the arguments.
    bool launch(const Key& key, c10::Stack& stack) const {
        const auto given = torch::jit::last(stack, arguments);
        const auto tensor = [&](size_t i) -> const at::Tensor& { return given[i].toTensor(); };
        const at::Tensor &a = tensor(added), &b = tensor(added + 1);
        const bool asked = arguments > (added ? 5u : 2u);  // for an out
        const at::Tensor out = asked ? given.back().toTensor() : at::empty({a.size(0), b.size(1)}, a.options());
        const auto address = [](const at::Tensor& x) { return reinterpret_cast<uint64_t>(x.const_data_ptr()); };
        const uint64_t addresses[harness::OPERANDS] = {
            address(a), address(b), reinterpret_cast<uint64_t>(out.mutable_data_ptr()),
            added ? address(tensor(0)) : 0};
        if (asked) {  // it may overlap an operand, which Python refuses
            const auto [begin, end] = harness::extent(out);
            for (const auto& x : given.slice(0, added + 2)) {
                const auto [from, to] = harness::extent(x.toTensor());
                if (from < end && begin < to) return false;
            }
        }
        if (!table.launch(key, a.device(), addresses)) return false;
        torch::jit::drop(stack, arguments);
        torch::jit::push(stack, out);
        return true;
    }

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
        Key key;
        const bool readable = read(key, *stack);
        const Way way = readable ? table.way(key) : Way::ASK;
        if (way == Way::STAY) return original.callBoxed(op, keys, stack);
        if (way == Way::LAUNCH && launch(key, *stack)) return;
        const auto decide = [&] {
            std::shared_lock lock(table.mutex);
            return python;
        }();
        if (!decide) return original.callBoxed(op, keys, stack);
        struct Pending {  // a rule that Python asks may itself multiply
            const Key* outer = pending;
            ~Pending() { pending = outer; }
        } restored;
        pending = readable ? &key : nullptr;
        decide->callBoxed(op, keys, stack);
    }
};

// A kernel in its place. It is kept until the next block: a thread may be within one when its block ends.
struct Placed {
    Kernel* kernel;
    c10::KernelFunction function;  // owns it
    std::optional<c10::RegistrationHandleRAII> handle;
};
auto& placed = *new std::vector<Placed>;
std::unique_ptr<Kernel> held;

struct Silent final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
} silent;

// Runs a function and returns what it throws as text, or nullptr.
template <class F>
const char* caught(F&& function) {
    static std::string text;
    try {
        function();
        return nullptr;
    } catch (const std::exception& e) {
        text = e.what();
    }
    return text.c_str();
}

}  // namespace

extern "C" {

// Begins a block with at most `most` keys.
void harness_open(int64_t most, int by_setting, const harness::Driver* driver) {
    placed.clear();
    std::unique_lock lock(table.mutex);
    table.forget();
    table.entries.clear();
    table.driver = *driver;
    table.most = static_cast<size_t>(most);
    table.by_setting = by_setting != 0;
    ++table.block;
}

// Remembers the kernel that an operator has.
const char* harness_hold(const char* name, const char* overload, const char* where) {
    return caught([&] {
        const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
        held = std::make_unique<Kernel>(
            op, c10::parseDispatchKey(where), static_cast<int64_t>(placed.size()));
    });
}

// Puts our kernel before the one that the operator of `harness_hold` has now, Python's.
const char* harness_put(const char* name, const char* overload) {
    return caught([&] {
        auto& dispatcher = c10::Dispatcher::singleton();
        const auto op = dispatcher.findSchemaOrThrow(name, overload);
        const auto where = held->where;
        held->python = std::make_shared<c10::SafeKernelFunction>(op.getComputedKernelForDispatchKey(where));
        Kernel* const kernel = held.get();
        placed.push_back({kernel, c10::KernelFunction::makeFromBoxedFunctor(std::move(held)), std::nullopt});
        c10::WarningUtils::WarningHandlerGuard guard(&silent);  // it warns of what is meant here
        placed.back().handle.emplace(dispatcher.registerImpl(
            op.operator_name(), where, placed.back().function, std::nullopt, nullptr, "harness"));
    });
}

// Keeps the product that Python decides in this thread as PyTorch's, and returns its place.
int64_t harness_stay() { return pending == nullptr ? NONE : table.add(*pending, nullptr, 0); }

// Says how often rooms were forgotten, for `harness_launch`.
int64_t harness_rooms() {
    std::shared_lock lock(table.mutex);
    return table.rooms;
}

// Keeps the launch of the product that Python decides in this thread, and returns its place. If the product
// is known, its launch gets the room of a further stream. A room that was read before others were forgotten,
// when `harness_rooms` said something else than `since`, is not kept.
int64_t harness_launch(const harness::Image* image, int64_t since) {
    return pending == nullptr ? NONE : table.add(*pending, image, since);
}

// Forgets the rooms of all launches: one of them will be freed. What was queued with it is in its stream.
void harness_forget_rooms() {
    std::unique_lock lock(table.mutex);
    ++table.rooms;
    for (size_t i = 0; i < table.used; ++i)
        for (const auto& launch : table.entries[i].launches)
            if (launch != nullptr) launch->forget_rooms();
}

// Writes the calls by place since the last time, and returns how many places there are. `forget`: all keys.
int64_t harness_drain(int64_t* calls, int forget) {
    std::unique_lock lock(table.mutex);
    const size_t size = table.used;
    for (size_t i = 0; i < size; ++i) calls[i] = table.entries[i].calls.exchange(0);
    if (forget) table.forget();
    return static_cast<int64_t>(size);
}

// Ends the block: our kernels are taken away, and what Python gave is let go.
void harness_close() {
    held.reset();
    std::vector<std::shared_ptr<c10::SafeKernelFunction>> gone;
    for (auto& one : placed) {
        one.handle.reset();
        std::unique_lock lock(table.mutex);
        gone.push_back(std::move(one.kernel->python));
    }
}  // without the lock: what ends there waits for Python's
}
