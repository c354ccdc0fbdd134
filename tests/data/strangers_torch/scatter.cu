// Scatter with gpuAtomicAdd, at::Half and at::BFloat16 scalars
#include <ATen/ATen.h>
#include <ATen/cuda/Atomic.cuh>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/detail/KernelUtils.h>
#include <c10/util/Half.h>
#include <c10/util/BFloat16.h>
#include <torch/library.h>

namespace at { namespace native {

template <typename scalar_t, typename index_t>
__global__ void scatter_add_kernel(scalar_t* __restrict__ out, const scalar_t* __restrict__ src, const index_t* __restrict__ index, int64_t rows, int64_t cols)
{
  CUDA_KERNEL_LOOP_TYPE(i, rows * cols, int64_t) {
    const int64_t row = i / cols, col = i % cols;
    gpuAtomicAddNoReturn(out + static_cast<int64_t>(index[row]) * cols + col, src[i]);
  }
}

template <typename scalar_t, typename accscalar_t>
__global__ void row_norm_kernel(accscalar_t* norms, const scalar_t* x, int64_t cols)
{
  __shared__ accscalar_t parts[32];
  accscalar_t sum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    const accscalar_t v = static_cast<accscalar_t>(x[blockIdx.x * cols + c]);
    sum += v * v;
  }
  for (int d = C10_WARP_SIZE / 2; d > 0; d >>= 1) sum += __shfl_down_sync(0xffffffff, sum, d);
  if (threadIdx.x % C10_WARP_SIZE == 0) parts[threadIdx.x / C10_WARP_SIZE] = sum;
  __syncthreads();
  if (threadIdx.x < C10_WARP_SIZE) {
    sum = threadIdx.x < blockDim.x / C10_WARP_SIZE ? parts[threadIdx.x] : accscalar_t(0);
    for (int d = C10_WARP_SIZE / 2; d > 0; d >>= 1) sum += __shfl_down_sync(0xffffffff, sum, d);
    if (threadIdx.x == 0) norms[blockIdx.x] = std::sqrt(sum);
  }
}

Tensor scatter_add_cuda(const Tensor& src, const Tensor& index, int64_t out_rows) {
  const auto rows = src.size(0), cols = src.size(1);
  auto out = at::zeros({out_rows, cols}, src.options());
  const int64_t total = rows * cols;
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, src.scalar_type(), "scatter_add", [&] {
    AT_DISPATCH_INDEX_TYPES(index.scalar_type(), "scatter_add_index", [&] {
      scatter_add_kernel<scalar_t, index_t><<<cuda::detail::GET_BLOCKS(total), cuda::detail::CUDA_NUM_THREADS, 0, at::cuda::getCurrentCUDAStream()>>>(
          out.data_ptr<scalar_t>(), src.data_ptr<scalar_t>(), index.data_ptr<index_t>(), rows, cols);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  });
  return out;
}

Tensor row_norm_cuda(const Tensor& x) {
  auto norms = at::empty({x.size(0)}, x.options().dtype(toAccumulateType(x.scalar_type(), true)));
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, x.scalar_type(), "row_norm", [&] {
    using accscalar_t = acc_type<scalar_t, true>;
    row_norm_kernel<scalar_t, accscalar_t><<<x.size(0), 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        norms.data_ptr<accscalar_t>(), x.data_ptr<scalar_t>(), x.size(1));
  });
  return norms;
}
}}  // namespace at::native
