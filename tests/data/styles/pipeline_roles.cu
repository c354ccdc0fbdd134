// Cuda::pipeline whose first warp produces, and the others consume
#include <cuda/pipeline>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(const float* x, float* y, int tiles) {
  constexpr auto scope = cuda::thread_scope_block;
  constexpr int S = 2, N = 64;
  __shared__ cuda::pipeline_shared_state<scope, S> state;
  __shared__ __align__(16) float stage[S][N];
  auto block = cg::this_thread_block();
  auto role = block.thread_rank() < 32 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer;
  auto pipe = cuda::make_pipeline(block, &state, role);
  if (role == cuda::pipeline_role::producer) {
    for (int i = 0; i < tiles; i++) {
      pipe.producer_acquire();
      cuda::memcpy_async(&stage[i % S][2 * threadIdx.x], &x[i * N + 2 * threadIdx.x], cuda::aligned_size_t<8>(8), pipe);
      pipe.producer_commit();
    }
  } else {
    int t = threadIdx.x - 32;
    float sum = 0;
    for (int i = 0; i < tiles; i++) {
      pipe.consumer_wait();
      sum += stage[i % S][N - 1 - t];
      pipe.consumer_release();
    }
    y[t] = sum;
  }
}
