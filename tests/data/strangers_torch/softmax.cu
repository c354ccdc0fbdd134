// Softmax of rows with vectors of the element type, forward and backward, persistent in registers by a macro of switches
#include <torch/extension.h>
#include <ATen/AccumulateType.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/macros/Macros.h>
#include <limits>

template <typename scalar_t, int vec_size>
struct alignas(sizeof(scalar_t) * vec_size) aligned_vector {
  scalar_t val[vec_size];
};

template <typename T>
struct Add { __device__ __forceinline__ T operator()(T a, T b) const { return a + b; } };
template <typename T>
struct Max { __device__ __forceinline__ T operator()(T a, T b) const { return a < b ? b : a; } };

template <template <typename> class Reduction, typename T>
__device__ __forceinline__ T block_reduce(T* shared, T val, const Reduction<T>& r, T identity)
{
  __syncthreads();
  for (int offset = C10_WARP_SIZE / 2; offset > 0; offset /= 2) val = r(val, WARP_SHFL_XOR(val, offset));
  if (threadIdx.x % C10_WARP_SIZE == 0) shared[threadIdx.x / C10_WARP_SIZE] = val;
  __syncthreads();
  val = threadIdx.x % C10_WARP_SIZE < blockDim.x / C10_WARP_SIZE ? shared[threadIdx.x % C10_WARP_SIZE] : identity;
  for (int offset = C10_WARP_SIZE / 2; offset > 0; offset /= 2) val = r(val, WARP_SHFL_XOR(val, offset));
  return val;
}

template <typename scalar_t, typename acc_t, int ILP>
__global__ void softmax_forward(scalar_t* __restrict__ output, const scalar_t* __restrict__ input, int dim)
{
  using vec_t = aligned_vector<scalar_t, ILP>;
  __shared__ acc_t shared[C10_WARP_SIZE];
  const vec_t* in = reinterpret_cast<const vec_t*>(input + static_cast<int64_t>(blockIdx.x) * dim);
  vec_t* out = reinterpret_cast<vec_t*>(output + static_cast<int64_t>(blockIdx.x) * dim);
  acc_t most = -std::numeric_limits<acc_t>::infinity();
  for (int i = threadIdx.x; i < dim / ILP; i += blockDim.x) {
    vec_t v = in[i];
#pragma unroll
    for (int j = 0; j < ILP; ++j) most = max(most, static_cast<acc_t>(v.val[j]));
  }
  most = block_reduce<Max, acc_t>(shared, most, Max<acc_t>(), -std::numeric_limits<acc_t>::infinity());
  acc_t sum = 0;
  for (int i = threadIdx.x; i < dim / ILP; i += blockDim.x) {
    vec_t v = in[i];
#pragma unroll
    for (int j = 0; j < ILP; ++j) sum += std::exp(static_cast<acc_t>(v.val[j]) - most);
  }
  sum = block_reduce<Add, acc_t>(shared, sum, Add<acc_t>(), acc_t(0));
  for (int i = threadIdx.x; i < dim / ILP; i += blockDim.x) {
    vec_t v = in[i];
#pragma unroll
    for (int j = 0; j < ILP; ++j) v.val[j] = static_cast<scalar_t>(std::exp(static_cast<acc_t>(v.val[j]) - most) / sum);
    out[i] = v;
  }
}

template <typename scalar_t, typename acc_t>
__global__ void softmax_backward(scalar_t* __restrict__ grad_input, const scalar_t* __restrict__ grad, const scalar_t* __restrict__ output, int dim)
{
  extern __shared__ unsigned char smem[];
  acc_t* shared = reinterpret_cast<acc_t*>(smem);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * dim;
  acc_t sum = 0;
  for (int c = threadIdx.x; c < dim; c += blockDim.x) sum += static_cast<acc_t>(grad[row + c]) * static_cast<acc_t>(output[row + c]);
  sum = block_reduce<Add, acc_t>(shared, sum, Add<acc_t>(), acc_t(0));
  for (int c = threadIdx.x; c < dim; c += blockDim.x)
    grad_input[row + c] = static_cast<acc_t>(output[row + c]) * (static_cast<acc_t>(grad[row + c]) - sum);
}

#define DISPATCH_ILP(ilp, ...)            \
  switch (ilp) {                          \
    case 4: { constexpr int ILP = 4; __VA_ARGS__(); break; } \
    default: { constexpr int ILP = 1; __VA_ARGS__(); }       \
  }

torch::Tensor softmax(torch::Tensor x)
{
  auto out = torch::empty_like(x);
  const int dim = x.size(-1);
  const int rows = x.numel() / dim;
  auto stream = c10::cuda::getCurrentCUDAStream().stream();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, x.scalar_type(), "softmax", [&] {
    using acc_t = at::acc_type<scalar_t, true>;
    softmax_forward<scalar_t, acc_t, 4><<<rows, 256, 0, stream>>>(out.data_ptr<scalar_t>(), x.data_ptr<scalar_t>(), dim);
  });
  return out;
}

torch::Tensor softmax_grad(torch::Tensor grad, torch::Tensor out)
{
  auto grad_input = torch::empty_like(out);
  const int dim = out.size(-1);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, out.scalar_type(), "softmax_grad", [&] {
    using acc_t = at::acc_type<scalar_t, true>;
    softmax_backward<scalar_t, acc_t><<<out.numel() / dim, 256, 32 * sizeof(acc_t), c10::cuda::getCurrentCUDAStream()>>>(
        grad_input.data_ptr<scalar_t>(), grad.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), dim);
  });
  return grad_input;
}
