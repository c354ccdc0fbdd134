// Experts over a cluster: tokens go to the block of their expert, which counts slots, works, and lets them be fetched
#include "units.cuh"
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const float* x, const int* expert, const float* scale, float* y) {
  constexpr int T = 32, D = 8;
  __shared__ float queue[4 * T][D];
  __shared__ int count;
  int t = threadIdx.x, me = rank(), token = blockIdx.x * T + t, to = expert[token];
  if (t == 0) count = 0;
  cluster_sync(); // begun
  int slot;
  asm volatile("atom.shared::cluster.add.u32 %0, [%1], 1;" : "=r"(slot) : "r"(far(&count, to)) : "memory");
  u32 there = far(&queue[slot][0], to);
  for (int d = 0; d < D; d++) put_far(there + d * 4, x[token * D + d]);
  cluster_sync(); // sent
  for (int i = t; i < count * D; i += T) queue[i / D][i % D] *= scale[(blockIdx.x / 4 * 4 + me) * D + i % D];
  cluster_sync(); // worked
  for (int d = 0; d < D; d++) y[token * D + d] = get_far(there + d * 4);
  cluster_sync(); // end
}
