// How C++ reaches Python, where what takes a decision is (runtime/): a function hands its arguments on.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

namespace harness
{
// Python's side: the name of a function, where it was called, and its arguments as 64 bits each.
using Handle = long (*)(const char* name, const void* caller, const uint64_t* arguments, int count);
extern Handle handle;  // null in a process that was forked
extern thread_local cudaError_t last;
extern int multiprocessors;

template <typename T> uint64_t bits(T* pointer) { return reinterpret_cast<uint64_t>(pointer); }
template <typename T> uint64_t bits(const T& value)
{
    if constexpr (sizeof(T) <= 8 && (std::is_integral_v<T> || std::is_enum_v<T>)) return static_cast<uint64_t>(value);
    else return reinterpret_cast<uint64_t>(&value);  // a struct, or a float: where it is
}

template <typename... T> long hand(const char* name, const void* caller, const T&... given)
{
    const uint64_t arguments[] = {bits(given)..., 0};
    return handle ? handle(name, caller, arguments, sizeof...(T)) : cudaErrorInitializationError;
}

template <typename... T> cudaError_t error(const char* name, const void* caller, const T&... given)
{
    auto found = static_cast<cudaError_t>(hand(name, caller, given...));
    if (found != cudaSuccess && found != cudaErrorNotReady) last = found;
    return found;
}
}  // namespace harness

#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))
#define API(name, parameters, ...) \
    cudaError_t CUDARTAPI name parameters { return error(#name, CALLER, __VA_ARGS__); }
#define NOTHING(name, parameters) \
    cudaError_t CUDARTAPI name parameters { return cudaSuccess; }
#define MAKES(name, type, parameters) \
    cudaError_t CUDARTAPI name parameters \
    { \
        *to = reinterpret_cast<type>(hand("a handle", CALLER, to)); \
        return cudaSuccess; \
    }
