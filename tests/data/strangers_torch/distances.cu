// Pairwise distances and greedy matching on accessors of 64 bits, with a device function that takes a TensorAccessor
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

template <typename scalar_t>
using Matrix = torch::PackedTensorAccessor64<scalar_t, 2, torch::RestrictPtrTraits>;

template <typename scalar_t>
__device__ scalar_t squared(const Matrix<scalar_t>& a, const Matrix<scalar_t>& b, int64_t i, int64_t j)
{
  scalar_t sum = 0;
  for (int64_t d = 0; d < a.size(1); ++d) {
    const scalar_t diff = a[i][d] - b[j][d];
    sum += diff * diff;
  }
  return sum;
}

template <typename scalar_t>
__global__ void pairwise_kernel(Matrix<scalar_t> out, const Matrix<scalar_t> a, const Matrix<scalar_t> b)
{
  const int64_t i = blockIdx.y * blockDim.y + threadIdx.y;
  const int64_t j = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < out.size(0) && j < out.size(1)) out[i][j] = sqrt(squared<scalar_t>(a, b, i, j));
}

template <typename scalar_t>
__global__ void nearest_kernel(torch::PackedTensorAccessor64<int64_t, 1> index, torch::PackedTensorAccessor64<scalar_t, 1> value, const Matrix<scalar_t> distances)
{
  const int64_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= distances.size(0)) return;
  scalar_t best = distances[i][0];
  int64_t at = 0;
  for (int64_t j = 1; j < distances.size(1); ++j)
    if (distances[i][j] < best) { best = distances[i][j]; at = j; }
  index[i] = at;
  value[i] = best;
}

std::vector<at::Tensor> nearest(at::Tensor a, at::Tensor b)
{
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1), "shapes");
  const c10::cuda::CUDAGuard guard(a.device());
  auto out = at::empty({a.size(0), b.size(0)}, a.options());
  auto index = at::empty({a.size(0)}, a.options().dtype(at::kLong));
  auto value = at::empty({a.size(0)}, a.options());
  const dim3 block(16, 16), grid((b.size(0) + 15) / 16, (a.size(0) + 15) / 16);
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "nearest", ([&] {
    pairwise_kernel<scalar_t><<<grid, block, 0, at::cuda::getCurrentCUDAStream()>>>(
        out.packed_accessor64<scalar_t, 2, torch::RestrictPtrTraits>(), a.packed_accessor64<scalar_t, 2, torch::RestrictPtrTraits>(),
        b.packed_accessor64<scalar_t, 2, torch::RestrictPtrTraits>());
    nearest_kernel<scalar_t><<<(a.size(0) + 127) / 128, 128, 0, at::cuda::getCurrentCUDAStream()>>>(
        index.packed_accessor64<int64_t, 1>(), value.packed_accessor64<scalar_t, 1>(), out.packed_accessor64<scalar_t, 2, torch::RestrictPtrTraits>());
  }));
  return {index, value};
}
