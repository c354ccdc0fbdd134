// Apex-like multi tensor apply: metadata in a struct by value, the functor as a template argument
#include <ATen/ATen.h>
#include <ATen/AccumulateType.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Exceptions.h>
#include <c10/cuda/CUDAGuard.h>

constexpr int depth_to_max_tensors = 24;
constexpr int depth_to_max_blocks = 64;
#define BLOCK_SIZE 512
#define ILP 4

template <int n>
struct TensorListMetadata {
  void* addresses[n][depth_to_max_tensors];
  int sizes[depth_to_max_tensors];
  unsigned char block_to_tensor[depth_to_max_blocks];
  int block_to_chunk[depth_to_max_blocks];
};

template <typename T>
struct ScaleFunctor {
  __device__ __forceinline__ void operator()(int chunk_size, volatile int* noop, TensorListMetadata<2>& tl, float scale)
  {
    const int tensor = tl.block_to_tensor[blockIdx.x];
    const int chunk = tl.block_to_chunk[blockIdx.x];
    int n = tl.sizes[tensor] - chunk * chunk_size;
    n = n < chunk_size ? n : chunk_size;
    T* in = (T*)tl.addresses[0][tensor] + chunk * chunk_size;
    T* out = (T*)tl.addresses[1][tensor] + chunk * chunk_size;
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = in[i] * scale;
  }
};

template <typename T, typename U, typename... ArgTypes>
__global__ void multi_tensor_apply_kernel(int chunk_size, volatile int* noop_flag, T tl, U callable, ArgTypes... args)
{
  callable(chunk_size, noop_flag, tl, args...);
}

// The same, plainly: one launch a tensor
template <typename T, typename MATH_T>
__global__ void adam_kernel(T* __restrict__ p, const T* __restrict__ g, MATH_T* __restrict__ m, MATH_T* __restrict__ v, const float beta1,
                            const float beta2, const float lr, const float eps, const float decay, const int n)
{
  for (int base = blockIdx.x * blockDim.x * ILP; base < n; base += gridDim.x * blockDim.x * ILP) {
    MATH_T r_g[ILP], r_p[ILP], r_m[ILP], r_v[ILP];
#pragma unroll
    for (int ii = 0; ii < ILP; ii++) {
      const int i = base + threadIdx.x + ii * blockDim.x;
      r_g[ii] = i < n ? MATH_T(g[i]) : MATH_T(0);
      r_p[ii] = i < n ? MATH_T(p[i]) : MATH_T(0);
      r_m[ii] = i < n ? m[i] : MATH_T(0);
      r_v[ii] = i < n ? v[i] : MATH_T(0);
    }
#pragma unroll
    for (int ii = 0; ii < ILP; ii++) {
      r_m[ii] = beta1 * r_m[ii] + (1 - beta1) * r_g[ii];
      r_v[ii] = beta2 * r_v[ii] + (1 - beta2) * r_g[ii] * r_g[ii];
      r_p[ii] -= lr * (r_m[ii] / (sqrtf(r_v[ii]) + eps) + decay * r_p[ii]);
    }
#pragma unroll
    for (int ii = 0; ii < ILP; ii++) {
      const int i = base + threadIdx.x + ii * blockDim.x;
      if (i < n) { p[i] = r_p[ii]; m[i] = r_m[ii]; v[i] = r_v[ii]; }
    }
  }
}

void adam(at::Tensor p, at::Tensor g, at::Tensor m, at::Tensor v, float lr, float beta1, float beta2, float eps, float decay)
{
  const at::cuda::OptionalCUDAGuard device_guard(device_of(p));
  const int n = p.numel();
  const int blocks = std::min((n + BLOCK_SIZE * ILP - 1) / (BLOCK_SIZE * ILP), 1024);
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(p.scalar_type(), "adam", [&] {
    using accscalar_t = at::acc_type<scalar_t, true>;
    adam_kernel<scalar_t, accscalar_t><<<blocks, BLOCK_SIZE, 0, at::cuda::getCurrentCUDAStream()>>>(
        p.data_ptr<scalar_t>(), g.data_ptr<scalar_t>(), m.data_ptr<accscalar_t>(), v.data_ptr<accscalar_t>(), beta1, beta2, lr, eps, decay, n);
  });
  AT_CUDA_CHECK(cudaGetLastError());
}
