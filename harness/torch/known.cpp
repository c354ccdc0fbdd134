// Products that were called before need no Python; known.py compiles and loads this file.
//
// A kernel for each operator lies before the Python function that decides: for PyTorch's own within
// `harness.torch.replace()`, for harness's registered ones from their first product on (standing.py). It reads
// from the arguments all that a decision depends on, a key. A product that was decided to be PyTorch's is
// counted and goes to PyTorch's kernel; one of harness's is counted and launched. Any other goes to the Python
// function, which may call `harness_stay` or `harness_launch` meanwhile: from then on the key is known. Only
// headers of c10 and ATen are used, none of CUDA.
#include "table.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <array>
#include <optional>
#include <vector>

namespace {

using harness::Key, harness::Table, harness::Way;

// That of a block, and that of the registered operators. They are never destroyed: other threads may still
// multiply while a process ends.
constexpr size_t TABLES = 2;
auto& tables = *new std::array<Table, TABLES>;

// The call which Python decides in this thread. `key` is null if that cannot be kept.
struct Pending {
    const Table* table = nullptr;
    const Key* key = nullptr;
};
thread_local Pending pending;

// What an operator's arguments are.
struct Signature {
    explicit Signature(const c10::FunctionSchema& schema)
        : count(schema.arguments().size()), added(schema.name().find("add") != std::string::npos),
          layer(schema.name().find("linear") != std::string::npos), out(schema.overload_name() == "out") {}

    size_t count;
    bool added;  // something is added to the product: the first argument
    bool layer;  // y = x w^T + bias, which may be None
    bool out;    // the last argument is one

    size_t a() const { return added ? 1 : 0; }
    size_t operands() const { return added || layer ? 3 : 2; }  // these come first
    size_t bias() const { return added ? 0 : 2; }               // if there are three

    // The size of a result for which there is no out.
    c10::DimVector shape(const at::Tensor& a, const at::Tensor& b) const {
        c10::DimVector found(a.sizes());
        found.back() = b.size(layer ? 0 : 1);
        return found;
    }
};

struct Kernel final : c10::OperatorKernel {
    Kernel(Table& table, const c10::OperatorHandle& op, c10::DispatchKey where, int64_t number)
        : table(table), name(op.operator_name()), number(number), given(op.schema()), where(where),
          below(c10::getBackendKeySetFromAutograd(where).highestPriorityTypeId()),
          original(op.getComputedKernelForDispatchKey(where)) {}

    Table& table;
    c10::OperatorName name;
    int64_t number;  // of the operator
    Signature given;
    c10::DispatchKey where, below;  // `below`: the backend's, if this one is autograd's
    c10::SafeKernelFunction original;
    std::shared_ptr<c10::SafeKernelFunction> python;  // none once the block has ended; under the lock

    // Says whether the product is all that is to be done: no gradient is asked for, and nothing lies between
    // autograd and the backend, such as a mode or a subclass of tensors.
    bool alone(c10::DispatchKeySet keys, const c10::Stack& stack) const {
        if (below == c10::DispatchKey::Undefined) return true;
        if ((keys & c10::after_autograd_keyset).highestPriorityTypeId() != below) return false;
        if (!c10::GradMode::is_enabled()) return true;
        for (const auto& x : torch::jit::last(stack, given.count))
            if (x.isTensor() && x.toTensor().requires_grad()) return false;
        return true;
    }

    bool read(Key& key, const c10::Stack& stack) const {
        bool float32 = false;
        key.add(table.block.load(std::memory_order_relaxed) << 8 | number);
        for (const auto& x : torch::jit::last(stack, given.count)) {
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
        const auto arguments = torch::jit::last(stack, given.count);
        const auto tensor = [&](size_t i) -> const at::Tensor& { return arguments[i].toTensor(); };
        const at::Tensor &a = tensor(given.a()), &b = tensor(given.a() + 1);
        const at::Tensor out =
            given.out ? arguments.back().toTensor() : at::empty(given.shape(a, b), a.options());
        const auto address = [](const at::Tensor& x) { return reinterpret_cast<uint64_t>(x.const_data_ptr()); };
        const bool bias = given.operands() > 2 && arguments[given.bias()].isTensor();
        const uint64_t addresses[harness::OPERANDS] = {
            address(a), address(b), reinterpret_cast<uint64_t>(out.mutable_data_ptr()),
            bias ? address(tensor(given.bias())) : 0};
        if (given.out) {  // it may overlap an operand, which Python refuses
            const auto [begin, end] = harness::extent(out);
            for (const auto& x : arguments.slice(0, given.operands())) {
                const auto [from, to] = harness::extent(x.toTensor());
                if (from < end && begin < to) return false;
            }
        }
        if (!table.launch(key, a.device(), addresses)) return false;
        torch::jit::drop(stack, given.count);
        torch::jit::push(stack, out);
        return true;
    }

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
        Key key;
        const bool readable = alone(keys, *stack) && read(key, *stack);
        const Way way = readable ? table.way(key) : Way::ASK;
        if (way == Way::STAY) return original.callBoxed(op, keys, stack);
        if (way == Way::LAUNCH && launch(key, *stack)) return;
        const auto decide = [&] {
            std::shared_lock lock(table.mutex);
            return python;
        }();
        if (!decide) return original.callBoxed(op, keys, stack);
        struct Restored {  // a rule that Python asks may itself multiply
            const Pending outer = pending;
            ~Restored() { pending = outer; }
        } restored;
        pending = {&table, readable ? &key : nullptr};
        decide->callBoxed(op, keys, stack);
    }
};

// A kernel in its place. It is kept until the next block: a thread may be within one when its block ends.
struct Placed {
    Kernel* kernel;
    c10::KernelFunction function;  // owns it
    std::optional<c10::RegistrationHandleRAII> handle;
};
auto& placed = *new std::array<std::vector<Placed>, TABLES>;
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

// Keeps the product that Python decides in this thread in the table that asked for it, and returns its place.
int64_t keep(Table& table, const harness::Image* image, int64_t since) {
    if (pending.table != &table || pending.key == nullptr) return harness::NONE;
    return table.add(*pending.key, image, since);
}

}  // namespace

extern "C" {

// `which`, everywhere: 0 is the table of a block, 1 that of the registered operators.

// Begins a block with at most `most` keys.
void harness_open(int which, int64_t most, int by_setting, const harness::Driver* driver) {
    placed[which].clear();
    Table& table = tables[which];
    std::unique_lock lock(table.mutex);
    table.forget();
    table.entries.clear();
    table.driver = *driver;
    table.most = static_cast<size_t>(most);
    table.by_setting = by_setting != 0;
    ++table.block;
}

// Remembers the kernel that an operator has.
const char* harness_hold(int which, const char* name, const char* overload, const char* where) {
    return caught([&] {
        const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
        auto number = static_cast<int64_t>(placed[which].size());
        for (const auto& one : placed[which])  // the same products, at another dispatch key
            if (one.kernel->name == op.operator_name()) number = one.kernel->number;
        held = std::make_unique<Kernel>(tables[which], op, c10::parseDispatchKey(where), number);
    });
}

// Puts our kernel before the one that the operator of `harness_hold` has now, Python's.
const char* harness_put(int which, const char* name, const char* overload) {
    return caught([&] {
        auto& dispatcher = c10::Dispatcher::singleton();
        const auto op = dispatcher.findSchemaOrThrow(name, overload);
        const auto where = held->where;
        held->python = std::make_shared<c10::SafeKernelFunction>(op.getComputedKernelForDispatchKey(where));
        Kernel* const kernel = held.get();
        auto& all = placed[which];
        all.push_back({kernel, c10::KernelFunction::makeFromBoxedFunctor(std::move(held)), std::nullopt});
        c10::WarningUtils::WarningHandlerGuard guard(&silent);  // it warns of what is meant here
        all.back().handle.emplace(dispatcher.registerImpl(
            op.operator_name(), where, all.back().function, std::nullopt, nullptr, "harness"));
    });
}

// Keeps the product that Python decides in this thread as PyTorch's, and returns its place.
int64_t harness_stay(int which) { return keep(tables[which], nullptr, 0); }

// Says how often rooms were forgotten, for `harness_launch`.
int64_t harness_rooms(int which) {
    std::shared_lock lock(tables[which].mutex);
    return tables[which].rooms;
}

// Keeps the launch of the product that Python decides in this thread, and returns its place. If the product
// is known, its launch gets the room of a further stream. A room that was read before others were forgotten,
// when `harness_rooms` said something else than `since`, is not kept.
int64_t harness_launch(int which, const harness::Image* image, int64_t since) {
    return keep(tables[which], image, since);
}

// Forgets the rooms of all launches: one of them will be freed. What was queued with it is in its stream.
void harness_forget_rooms(int which) {
    Table& table = tables[which];
    std::unique_lock lock(table.mutex);
    ++table.rooms;
    for (size_t i = 0; i < table.used; ++i)
        for (const auto& launch : table.entries[i].launches)
            if (launch != nullptr) launch->forget_rooms();
}

// Writes the calls by place since the last time, and returns how many places there are. `forget`: all keys.
int64_t harness_drain(int which, int64_t* calls, int forget) {
    Table& table = tables[which];
    std::unique_lock lock(table.mutex);
    const size_t size = table.used;
    for (size_t i = 0; i < size; ++i) calls[i] = table.entries[i].calls.exchange(0);
    if (forget) table.forget();
    return static_cast<int64_t>(size);
}

// Ends the block: our kernels are taken away, and what Python gave is let go.
void harness_close(int which) {
    held.reset();
    std::vector<std::shared_ptr<c10::SafeKernelFunction>> gone;
    for (auto& one : placed[which]) {
        one.handle.reset();
        std::unique_lock lock(tables[which].mutex);
        gone.push_back(std::move(one.kernel->python));
    }
}  // without the lock: what ends there waits for Python's
}
