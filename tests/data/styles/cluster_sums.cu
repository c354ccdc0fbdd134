// Sums of a cluster by bulk copies that add, into the first block's memory, which completes an mbarrier
#include "styles.cuh"
extern "C" __global__ void __cluster_dims__(3, 1, 1) k(const int* x, int* y, int n) {
  __shared__ alignas(128) int mine[64], all[64];
  __shared__ alignas(8) u64 bar;
  int t = threadIdx.x, me = rank();
  int s = 0;
  for (int i = me; i < n; i += 3) s += x[i * 64 + t];
  mine[t] = s;
  all[t] = 0;
  if (t == 0) { init(&bar, 1); fence_init(); if (me == 0) expect(&bar, 3 * 256); }
  fence_async();
  cluster_sync();
  if (t == 0)
    asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.s32 [%0], [%1], %2, [%3];"
      :: "r"(far(all, 0)), "r"(at(mine)), "r"(256), "r"(far(&bar, 0)) : "memory");
  if (me == 0) { wait_cluster(&bar, 0); y[t] = all[t]; }
  cluster_sync();
}
