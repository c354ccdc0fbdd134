// Attention in a ring: each block's keys go round the cluster by bulk copies from shared memory to the next block's
#include "units.cuh"
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const float* q, const float* keys, float* y) {
  constexpr int R = 4, K = 16, D = 32;
  __shared__ __align__(128) float kv[2][K][D];
  __shared__ u64 full[2], empty[2];
  int t = threadIdx.x, me = rank(), next = (me + 1) % R, before = (me + R - 1) % R;
  if (t == 0) {
    for (int s = 0; s < 2; s++) { init(&full[s], 1); init(&empty[s], 2); }
    fence_init();
  }
  cluster_sync(); // begun
  if (t == 0) { expect(&full[0], sizeof kv[0]); load(kv[0], keys + me * K * D, sizeof kv[0], &full[0]); }
  float sum = 0, mine[D];
  for (int d = 0; d < D; d++) mine[d] = q[(me * 32 + t) * D + d];
  for (int i = 0; i < R; i++) {
    int s = i & 1;
    wait_cluster(&full[s], i / 2 & 1);
    if (t == 0 && i > 0 && i + 1 < R) arrive_far(far(&empty[s ^ 1], (me + 2) % R)); // it has come
    if (i + 1 < R && t == 0) {
      expect(&full[s ^ 1], sizeof kv[0]);
      if (i > 0) wait_cluster(&empty[s ^ 1], (i - 1) / 2 & 1);
      asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                   :: "r"(far(kv[s ^ 1], next)), "r"(at(kv[s])), "r"((int)sizeof kv[0]), "r"(far(&full[s ^ 1], next)) : "memory");
    }
    for (int j = 0; j < K; j++) {
      float dot = 0;
      for (int d = 0; d < D; d++) dot += mine[d] * kv[s][j][d];
      sum += dot * dot;
    }
    __syncwarp(); // used
    if (t == 0 && i + 2 < R) arrive_far(far(&empty[s], before));
  }
  y[me * 32 + t] = sum;
  cluster_sync(); // end
}
