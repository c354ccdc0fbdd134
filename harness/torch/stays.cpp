// Products that stay PyTorch's go to its kernels without Python; stays.py compiles and loads this file.
//
// Within `harness.torch.replace()` a kernel for each operator lies before the Python function that decides.
// It reads from the arguments all that a decision depends on, a key. One that was decided to be PyTorch's is
// counted and goes to PyTorch's kernel. Any other goes to the Python function, which may call `harness_stay`
// meanwhile: from then on the key is known. Only headers of c10 and ATen are used, none of CUDA.
#include <ATen/Context.h>
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

// The decisions of one block. Counts change under the shared lock, so that none is lost as they are drained.
struct Table {
    std::shared_mutex mutex;
    std::unordered_map<Key, size_t, Hash> places;
    std::deque<std::atomic<int64_t>> counts;
    size_t most = 0;
    std::atomic<int64_t> block{0};      // the number of this block, a part of each key
    std::atomic<bool> by_setting{false};  // PyTorch's setting decides how float32 is multiplied

    bool count(const Key& key) {
        std::shared_lock lock(mutex);
        const auto found = places.find(key);
        if (found == places.end()) return false;
        counts[found->second].fetch_add(1, std::memory_order_relaxed);
        return true;
    }

    int64_t add(const Key& key) {
        std::unique_lock lock(mutex);
        const auto found = places.find(key);
        if (found != places.end()) return static_cast<int64_t>(found->second);
        if (places.size() >= most) return FULL;
        const size_t place = places.size();
        if (counts.size() == place) counts.emplace_back(0);
        places.emplace(key, place);
        return static_cast<int64_t>(place);
    }
};

Table& table = *new Table;  // never destroyed: other threads may still multiply while a process ends
thread_local const Key* pending = nullptr;  // that of the call which Python decides in this thread

struct Kernel final : c10::OperatorKernel {
    Kernel(const c10::OperatorHandle& op, c10::DispatchKey where, int64_t number)
        : number(number), arguments(op.schema().arguments().size()), where(where),
          original(op.getComputedKernelForDispatchKey(where)) {}

    int64_t number;  // of the operator
    size_t arguments;
    c10::DispatchKey where;
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

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
        Key key;
        const bool readable = read(key, *stack);
        if (readable && table.count(key)) return original.callBoxed(op, keys, stack);
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
void harness_open(int64_t most, int by_setting) {
    placed.clear();
    std::unique_lock lock(table.mutex);
    table.places.clear();
    table.counts.clear();
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
int64_t harness_stay() { return pending == nullptr ? NONE : table.add(*pending); }

// Writes the calls by place since the last time, and returns how many places there are. `forget`: all keys.
int64_t harness_drain(int64_t* calls, int forget) {
    std::unique_lock lock(table.mutex);
    const auto size = static_cast<int64_t>(table.places.size());
    for (int64_t i = 0; i < size; ++i) calls[i] = table.counts[i].exchange(0);
    if (forget) table.places.clear();
    return size;
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
