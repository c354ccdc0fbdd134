// Split arrivals of libcu++: producers and consumers with a barrier for full and one for free buffers, by tokens
#include <cuda/barrier>
#include <cuda/std/utility>
using Barrier = cuda::barrier<cuda::thread_scope_block>;
extern "C" __global__ void k(const int* x, int* y, int rounds) {
  #pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ Barrier full[2], empty[2];
  __shared__ int buffer[2][32];
  int t = threadIdx.x;
  if (t < 2) { init(&full[t], 64); init(&empty[t], 64); }
  __syncthreads(); // ready
  if (t < 32) {
    for (int i = 0; i < rounds; i++) {
      empty[i & 1].arrive_and_wait();
      buffer[i & 1][t] = x[(blockIdx.x * rounds + i) * 32 + t];
      (void)full[i & 1].arrive();
    }
  } else {
    int sum = 0;
    (void)empty[0].arrive(); (void)empty[1].arrive();
    for (int i = 0; i < rounds; i++) {
      auto token = full[i & 1].arrive();
      full[i & 1].wait(cuda::std::move(token));
      sum += buffer[i & 1][63 - t];
      if (i + 2 < rounds) (void)empty[i & 1].arrive();
    }
    y[blockIdx.x * 32 + 63 - t] = sum;
  }
}
