// Layer norm with Welford's sums, a functor as kernel argument by decltype, and a bias of another type
#include <torch/extension.h>
#include <ATen/OpMathType.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <ATen/cuda/DeviceUtils.cuh>

template <typename acc_t>
struct WelfordData { acc_t mean, m2; acc_t n; };

template <typename acc_t>
struct WelfordOps {
  __device__ WelfordData<acc_t> reduce(WelfordData<acc_t> a, acc_t x) const {
    const acc_t delta = x - a.mean, n = a.n + 1, mean = a.mean + delta / n;
    return {mean, a.m2 + delta * (x - mean), n};
  }
  __device__ WelfordData<acc_t> combine(WelfordData<acc_t> a, WelfordData<acc_t> b) const {
    if (a.n == 0) return b;
    if (b.n == 0) return a;
    const acc_t delta = b.mean - a.mean, n = a.n + b.n;
    return {a.mean + delta * b.n / n, a.m2 + b.m2 + delta * delta * a.n * b.n / n, n};
  }
  __device__ WelfordData<acc_t> warp_shfl_down(WelfordData<acc_t> a, int offset) const {
    return {WARP_SHFL_DOWN(a.mean, offset), WARP_SHFL_DOWN(a.m2, offset), WARP_SHFL_DOWN(a.n, offset)};
  }
};

template <typename scalar_t, typename acc_t, typename ops_t>
__global__ void C10_LAUNCH_BOUNDS_1(256) layer_norm_kernel(scalar_t* __restrict__ y, acc_t* __restrict__ mean, acc_t* __restrict__ rstd, const scalar_t* __restrict__ x,
                                  const scalar_t* __restrict__ gamma, const scalar_t* __restrict__ beta, int64_t cols, acc_t eps, ops_t ops)
{
  __shared__ WelfordData<acc_t> parts[8];
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x % C10_WARP_SIZE, warp = threadIdx.x / C10_WARP_SIZE;
  WelfordData<acc_t> all = {0, 0, 0};
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) all = ops.reduce(all, static_cast<acc_t>(x[row * cols + c]));
  for (int offset = C10_WARP_SIZE >> 1; offset > 0; offset >>= 1) all = ops.combine(all, ops.warp_shfl_down(all, offset));
  if (lane == 0) parts[warp] = all;
  __syncthreads();
  if (warp == 0) {
    all = lane < 8 ? parts[lane] : WelfordData<acc_t>{0, 0, 0};
    for (int offset = 4; offset > 0; offset >>= 1) all = ops.combine(all, ops.warp_shfl_down(all, offset));
    if (lane == 0) {
      parts[0] = all;
      mean[row] = all.mean;
      rstd[row] = rsqrt(all.m2 / all.n + eps);
    }
  }
  __syncthreads();
  const acc_t mu = parts[0].mean, scale = rsqrt(parts[0].m2 / parts[0].n + eps);
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
    y[row * cols + c] = static_cast<scalar_t>((static_cast<acc_t>(x[row * cols + c]) - mu) * scale * static_cast<acc_t>(gamma[c]) + static_cast<acc_t>(beta[c]));
}

std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> layer_norm(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps)
{
  const int64_t rows = x.size(0), cols = x.size(1);
  auto y = torch::empty_like(x);
  auto mean = torch::empty({rows}, x.options().dtype(at::toOpMathType(x.scalar_type())));
  auto rstd = torch::empty_like(mean);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "layer_norm", [&] {
    using opmath_t = at::opmath_type<scalar_t>;
    WelfordOps<opmath_t> ops;
    layer_norm_kernel<scalar_t, opmath_t, decltype(ops)><<<rows, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        y.mutable_data_ptr<scalar_t>(), mean.mutable_data_ptr<opmath_t>(), rstd.mutable_data_ptr<opmath_t>(), x.const_data_ptr<scalar_t>(),
        gamma.const_data_ptr<scalar_t>(), beta.const_data_ptr<scalar_t>(), cols, static_cast<opmath_t>(eps), ops);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {y, mean, rstd};
}
