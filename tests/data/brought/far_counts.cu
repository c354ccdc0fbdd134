// Counts of a cluster by red.async: bins are divided over its blocks, which wait for as many bytes as there are items
#include "units.cuh"
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const int* x, int* y, const int* items) {
  __shared__ u32 bins[32];
  __shared__ u64 full;
  int t = threadIdx.x, me = rank();
  if (t < 32) bins[t] = 0;
  if (t == 0) { init(&full, 1); fence_init(); }
  cluster_sync(); // begun
  if (t == 0) expect(&full, 4 * items[blockIdx.x]);
  for (int i = t; i < 128; i += 64) {
    int bin = x[blockIdx.x * 128 + i];
    asm volatile("red.async.relaxed.cluster.mbarrier::complete_tx::bytes.shared::cluster.add.u32 [%0], 1, [%1];"
                 :: "r"(far(&bins[bin % 32], bin / 32)), "r"(far(&full, bin / 32)) : "memory");
  }
  wait_cluster(&full, 0);
  if (t < 32) y[blockIdx.x * 32 + t] = bins[t];
  cluster_sync(); // end
}
