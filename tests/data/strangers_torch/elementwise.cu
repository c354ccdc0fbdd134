// Elementwise with extended lambdas and functors
#include <torch/extension.h>
#include <ATen/AccumulateType.h>
#include <ATen/OpMathType.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAMathCompat.h>
#include <c10/macros/Macros.h>

constexpr int kBlock = 256, kVec = 4;

template <typename scalar_t, typename func_t>
C10_LAUNCH_BOUNDS_1(kBlock)
__global__ void elementwise_kernel(int64_t n, scalar_t* __restrict__ out, const scalar_t* __restrict__ a, const scalar_t* __restrict__ b, func_t f)
{
  using opmath_t = at::opmath_type<scalar_t>;
  const int64_t base = (int64_t)blockIdx.x * kBlock * kVec + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    const int64_t at = base + i * kBlock;
    if (at < n) out[at] = static_cast<scalar_t>(f(static_cast<opmath_t>(a[at]), static_cast<opmath_t>(b[at])));
  }
}

template <typename opmath_t>
struct SwiGLU {
  opmath_t limit;
  C10_HOST_DEVICE opmath_t operator()(opmath_t gate, opmath_t up) const {
    gate = gate < limit ? gate : limit;
    return gate / (opmath_t(1) + c10::cuda::compat::exp(-gate)) * up;
  }
};

template <typename scalar_t, typename F>
void launch(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, F f) {
  const int64_t n = out.numel();
  const int64_t blocks = (n + kBlock * kVec - 1) / (kBlock * kVec);
  elementwise_kernel<<<blocks, kBlock, 0, at::cuda::getCurrentCUDAStream()>>>(
      n, out.mutable_data_ptr<scalar_t>(), a.const_data_ptr<scalar_t>(), b.const_data_ptr<scalar_t>(), f);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

at::Tensor swiglu(at::Tensor a, at::Tensor b, double limit) {
  auto out = at::empty_like(a);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, a.scalar_type(), "swiglu", [&] {
    using opmath_t = at::opmath_type<scalar_t>;
    launch<scalar_t>(out, a, b, SwiGLU<opmath_t>{static_cast<opmath_t>(limit)});
  });
  return out;
}

at::Tensor squared_difference(at::Tensor a, at::Tensor b) {
  auto out = at::empty_like(a);
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "squared_difference", [&] {
    launch<scalar_t>(out, a, b, [] GPU_LAMBDA(scalar_t x, scalar_t y) -> scalar_t { return (x - y) * (x - y); });
  });
  return out;
}
