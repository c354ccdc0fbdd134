// Stands in for what device code takes of PyTorch, where its headers are not found: loops over a grid, 16-bit numbers,
// the types that sums have, and names of CUDA's own functions. It is written from their documented meaning.
#pragma once

#include <stdint.h>

#if __has_include(<cuda_fp16.h>)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define HARNESS_SIXTEEN_BITS
#endif

#ifndef CUDA_KERNEL_LOOP_TYPE
#define CUDA_KERNEL_LOOP_TYPE(i, n, index_type)                                                                        \
    int64_t _next_##i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;                                                \
    for (index_type i = _next_##i; _next_##i < (n); _next_##i += int64_t(blockDim.x) * gridDim.x, i = _next_##i)
#endif
#ifndef CUDA_KERNEL_LOOP
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)
#endif
#define C10_WARP_SIZE 32
#define C10_HOST_DEVICE __host__ __device__
#define C10_DEVICE __device__
#define C10_HOST __host__
#define C10_ALWAYS_INLINE __forceinline__
#define C10_RESTRICT __restrict__
#define C10_LAUNCH_BOUNDS_0 __launch_bounds__(256)
#define C10_LAUNCH_BOUNDS_1(threads) __launch_bounds__(threads)
#define C10_LAUNCH_BOUNDS_2(threads, blocks) __launch_bounds__(threads, blocks)
#define C10_LIKELY(x) (x)
#define C10_UNLIKELY(x) (x)
#define GPU_LAMBDA __host__ __device__
#ifndef CUDA_KERNEL_ASSERT
#define CUDA_KERNEL_ASSERT(x) assert(x)
#endif

template <typename T>
__host__ __device__ __forceinline__ T THCCeilDiv(T a, T b)
{
    return (a + b - 1) / b;
}

namespace c10 {

#ifdef HARNESS_SIXTEEN_BITS
// A number of 16 bits that is computed with as float, and rounded each time.
template <typename Bits>
struct alignas(2) Rounded {
    Bits bits;

    Rounded() = default;
    __device__ Rounded(float value) : bits(value) {}
    __device__ Rounded(Bits value) : bits(value) {}
    __device__ operator float() const { return float(bits); }
    __device__ operator Bits() const { return bits; }
    __device__ Rounded& operator+=(Rounded x) { return *this = float(*this) + float(x); }
    __device__ Rounded& operator-=(Rounded x) { return *this = float(*this) - float(x); }
    __device__ Rounded& operator*=(Rounded x) { return *this = float(*this) * float(x); }
    __device__ Rounded& operator/=(Rounded x) { return *this = float(*this) / float(x); }
    __device__ friend Rounded operator-(Rounded x) { return -float(x); }

#define HARNESS_OPERATOR(op)                                                                                           \
    __device__ friend Rounded operator op(Rounded a, Rounded b) { return float(a) op float(b); }                       \
    __device__ friend float operator op(Rounded a, float b) { return float(a) op b; }                                  \
    __device__ friend float operator op(float a, Rounded b) { return a op float(b); }                                  \
    __device__ friend double operator op(Rounded a, double b) { return float(a) op b; }                                \
    __device__ friend double operator op(double a, Rounded b) { return a op float(b); }                                \
    __device__ friend Rounded operator op(Rounded a, int b) { return float(a) op float(b); }                           \
    __device__ friend Rounded operator op(int a, Rounded b) { return float(a) op float(b); }                           \
    __device__ friend Rounded operator op(Rounded a, int64_t b) { return float(a) op float(b); }                       \
    __device__ friend Rounded operator op(int64_t a, Rounded b) { return float(a) op float(b); }
    HARNESS_OPERATOR(+)
    HARNESS_OPERATOR(-)
    HARNESS_OPERATOR(*)
    HARNESS_OPERATOR(/)
#undef HARNESS_OPERATOR

#define HARNESS_COMPARISON(op)                                                                                         \
    __device__ friend bool operator op(Rounded a, Rounded b) { return float(a) op float(b); }                          \
    __device__ friend bool operator op(Rounded a, float b) { return float(a) op b; }                                   \
    __device__ friend bool operator op(float a, Rounded b) { return a op float(b); }                                   \
    __device__ friend bool operator op(Rounded a, int b) { return float(a) op float(b); }
    HARNESS_COMPARISON(<)
    HARNESS_COMPARISON(>)
    HARNESS_COMPARISON(<=)
    HARNESS_COMPARISON(>=)
    HARNESS_COMPARISON(==)
    HARNESS_COMPARISON(!=)
#undef HARNESS_COMPARISON
};

using Half = Rounded<__half>;
using BFloat16 = Rounded<__nv_bfloat16>;
#endif

namespace cuda {
namespace compat {
template <typename T> __device__ T abs(T x) { return ::fabs(x); }
template <typename T> __device__ T exp(T x) { return ::exp(x); }
template <typename T> __device__ T log(T x) { return ::log(x); }
template <typename T> __device__ T log1p(T x) { return ::log1p(x); }
template <typename T> __device__ T pow(T x, T y) { return ::pow(x, y); }
template <typename T> __device__ T rsqrt(T x) { return ::rsqrt(x); }
template <typename T> __device__ T sqrt(T x) { return ::sqrt(x); }
template <typename T> __device__ T tanh(T x) { return ::tanh(x); }
template <typename T> __device__ T erf(T x) { return ::erf(x); }
template <typename T> __device__ T ceil(T x) { return ::ceil(x); }
template <typename T> __device__ T max(T x, T y) { return x > y ? x : y; }
template <typename T> __device__ T min(T x, T y) { return x < y ? x : y; }
}  // namespace compat
}  // namespace cuda

}  // namespace c10

namespace at {

using namespace c10;

// The type in which 16-bit numbers are computed with, and in which they are summed; others keep their own.
template <typename T> struct OpMathType { using type = T; };
template <typename T, bool is_cuda = true> struct AccumulateType { using type = typename OpMathType<T>::type; };
#ifdef HARNESS_SIXTEEN_BITS
template <> struct OpMathType<Half> { using type = float; };
template <> struct OpMathType<BFloat16> { using type = float; };
template <> struct OpMathType<__half> { using type = float; };
template <> struct OpMathType<__nv_bfloat16> { using type = float; };
#endif
template <typename T> using opmath_type = typename OpMathType<T>::type;
template <typename T, bool is_cuda> using acc_type = typename AccumulateType<T, is_cuda>::type;

}  // namespace at

#ifdef HARNESS_SIXTEEN_BITS
__device__ inline c10::Half atomicAdd(c10::Half* at, c10::Half x) { return atomicAdd((__half*)at, x.bits); }
__device__ inline c10::BFloat16 atomicAdd(c10::BFloat16* at, c10::BFloat16 x)
{
    return atomicAdd((__nv_bfloat16*)at, x.bits);
}
__device__ inline c10::Half __ldg(const c10::Half* at) { return *at; }
__device__ inline c10::BFloat16 __ldg(const c10::BFloat16* at) { return *at; }
#endif
template <typename T> __device__ T gpuAtomicAdd(T* at, T x) { return atomicAdd(at, x); }
template <typename T> __device__ void gpuAtomicAddNoReturn(T* at, T x) { atomicAdd(at, x); }

template <typename T> __device__ T WARP_SHFL(T x, int lane, int width = 32, unsigned mask = 0xffffffff)
{
    return __shfl_sync(mask, x, lane, width);
}
template <typename T> __device__ T WARP_SHFL_XOR(T x, int lanes, int width = 32, unsigned mask = 0xffffffff)
{
    return __shfl_xor_sync(mask, x, lanes, width);
}
template <typename T> __device__ T WARP_SHFL_UP(T x, unsigned by, int width = 32, unsigned mask = 0xffffffff)
{
    return __shfl_up_sync(mask, x, by, width);
}
template <typename T> __device__ T WARP_SHFL_DOWN(T x, unsigned by, int width = 32, unsigned mask = 0xffffffff)
{
    return __shfl_down_sync(mask, x, by, width);
}
__device__ inline unsigned WARP_BALLOT(int predicate, unsigned mask = 0xffffffff)
{
    return __ballot_sync(mask, predicate);
}
