#include <torch/extension.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <vector>

namespace {
template <typename scalar_t>
__device__ __forceinline__ scalar_t sigmoid(scalar_t z) { return 1.0 / (1.0 + exp(-z)); }
template <typename scalar_t>
__device__ __forceinline__ scalar_t d_tanh(scalar_t z) { const auto t = tanh(z); return 1 - (t * t); }

template <typename scalar_t>
__global__ void gru_cuda_forward_kernel(
    const torch::PackedTensorAccessor32<scalar_t, 3, torch::RestrictPtrTraits> gates,
    const torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> old_h,
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> new_h,
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> reset,
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> update) {
  const int n = blockIdx.y;
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < gates.size(2)) {
    reset[n][c] = sigmoid(gates[n][0][c]);
    update[n][c] = sigmoid(gates[n][1][c]);
    const scalar_t candidate = tanh(gates[n][2][c] * reset[n][c]);
    new_h[n][c] = old_h[n][c] * update[n][c] + candidate * (1 - update[n][c]);
  }
}
}  // namespace

std::vector<torch::Tensor> gru_cuda_forward(torch::Tensor input, torch::Tensor weights, torch::Tensor bias, torch::Tensor old_h) {
  auto X = torch::cat({old_h, input}, /*dim=*/1);
  auto gate_weights = torch::addmm(bias, X, weights.transpose(0, 1));
  const auto batch_size = old_h.size(0);
  const auto state_size = old_h.size(1);
  auto gates = gate_weights.reshape({batch_size, 3, state_size});
  auto new_h = torch::zeros_like(old_h);
  auto reset = torch::zeros_like(old_h);
  auto update = torch::zeros_like(old_h);

  const int threads = 1024;
  const dim3 blocks((state_size + threads - 1) / threads, batch_size);
  AT_DISPATCH_FLOATING_TYPES(gates.type(), "gru_forward_cuda", ([&] {
    gru_cuda_forward_kernel<scalar_t><<<blocks, threads>>>(
        gates.packed_accessor32<scalar_t, 3, torch::RestrictPtrTraits>(),
        old_h.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
        new_h.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
        reset.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
        update.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>());
  }));
  return {new_h, reset, update};
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &gru_cuda_forward, "GRU forward (CUDA)"); }
