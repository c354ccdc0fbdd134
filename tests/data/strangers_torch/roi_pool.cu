// Roi-align-like with macros of the mmcv kind
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAException.h>
#include <THC/THCAtomics.cuh>

#define CUDA_1D_KERNEL_LOOP(i, n) \
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += blockDim.x * gridDim.x)
#define THREADS_PER_BLOCK 512
inline int GET_BLOCKS(const int N, const int num_threads = THREADS_PER_BLOCK) {
  int optimal_block_num = (N + num_threads - 1) / num_threads;
  int max_block_num = 4096;
  return std::min(optimal_block_num, max_block_num);
}

template <typename T>
__device__ T bilinear(const T* input, const int height, const int width, T y, T x) {
  if (y < -1.0 || y > height || x < -1.0 || x > width) return 0;
  if (y <= 0) y = 0;
  if (x <= 0) x = 0;
  int y_low = (int)y, x_low = (int)x, y_high, x_high;
  if (y_low >= height - 1) { y_high = y_low = height - 1; y = (T)y_low; } else { y_high = y_low + 1; }
  if (x_low >= width - 1) { x_high = x_low = width - 1; x = (T)x_low; } else { x_high = x_low + 1; }
  T ly = y - y_low, lx = x - x_low, hy = 1. - ly, hx = 1. - lx;
  return hy * hx * input[y_low * width + x_low] + hy * lx * input[y_low * width + x_high] +
         ly * hx * input[y_high * width + x_low] + ly * lx * input[y_high * width + x_high];
}

template <typename T>
__global__ void roi_pool_forward_cuda_kernel(const int nthreads, const T* input, const T* rois, T* output, const int pooled_height,
                                             const int pooled_width, const T spatial_scale, const int channels, const int height, const int width) {
  CUDA_1D_KERNEL_LOOP(index, nthreads) {
    int pw = index % pooled_width;
    int ph = (index / pooled_width) % pooled_height;
    int c = (index / pooled_width / pooled_height) % channels;
    int n = index / pooled_width / pooled_height / channels;
    const T* offset_rois = rois + n * 4;
    T x1 = offset_rois[0] * spatial_scale, y1 = offset_rois[1] * spatial_scale;
    T x2 = offset_rois[2] * spatial_scale, y2 = offset_rois[3] * spatial_scale;
    T bin_w = (x2 - x1) / pooled_width, bin_h = (y2 - y1) / pooled_height;
    output[index] = bilinear(input + c * height * width, height, width, y1 + (ph + T(0.5)) * bin_h, x1 + (pw + T(0.5)) * bin_w);
  }
}

template <typename T>
__global__ void roi_pool_backward_cuda_kernel(const int nthreads, const T* grad_output, T* grad_input, const int channels, const int plane) {
  CUDA_1D_KERNEL_LOOP(index, nthreads) {
    int c = index % channels;
    atomicAdd(grad_input + (index * 7 % plane) * channels + c, grad_output[index]);
  }
}

void roi_pool_forward(at::Tensor input, at::Tensor rois, at::Tensor output, int pooled_height, int pooled_width, float spatial_scale) {
  int output_size = output.numel();
  int channels = input.size(1), height = input.size(2), width = input.size(3);
  at::cuda::CUDAGuard device_guard(input.device());
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(input.scalar_type(), "roi_pool_forward_cuda_kernel", [&] {
    roi_pool_forward_cuda_kernel<scalar_t><<<GET_BLOCKS(output_size), THREADS_PER_BLOCK, 0, stream>>>(
        output_size, input.data_ptr<scalar_t>(), rois.data_ptr<scalar_t>(), output.data_ptr<scalar_t>(), pooled_height, pooled_width,
        static_cast<scalar_t>(spatial_scale), channels, height, width);
  });
  AT_CUDA_CHECK(cudaGetLastError());
}

void roi_pool_backward(at::Tensor grad_output, at::Tensor grad_input) {
  int output_size = grad_output.numel(), channels = grad_input.size(1), plane = grad_input.size(0);
  AT_DISPATCH_FLOATING_TYPES(grad_output.scalar_type(), "roi_pool_backward", [&] {
    roi_pool_backward_cuda_kernel<scalar_t><<<GET_BLOCKS(output_size), THREADS_PER_BLOCK, 0, at::cuda::getCurrentCUDAStream()>>>(
        output_size, grad_output.data_ptr<scalar_t>(), grad_input.data_ptr<scalar_t>(), channels, plane);
  });
}
