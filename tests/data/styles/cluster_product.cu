// Product in clusters of 2 x 2: both operands by multicast, stages freed over the whole cluster
#include "styles.cuh"
DEV void cast(void* to, const Map* m, int x, int y, u64* b, u16 mask) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    " [%0], [%1, {%2, %3}], [%4], %5;" :: "r"(at(to)), "l"(m), "r"(x), "r"(y), "r"(at(b)), "h"(mask) : "memory"); }
extern "C" __global__ void __cluster_dims__(2, 2, 1) k(const __grid_constant__ Map ma, const __grid_constant__ Map mb, float* c, int n, int k) {
  constexpr int S = 2, T = 16, K = 8;
  __shared__ alignas(128) float a[S][T][K], b[S][T][K];
  __shared__ alignas(8) u64 full[S], empty[S];
  int t = threadIdx.x, me = rank(), x = me & 1, y = me >> 1, steps = (k + K - 1) / K;
  if (t == 0) {
    for (int s = 0; s < S; s++) { init(&full[s], 1); init(&empty[s], 3 * 4); }   // this row and column
    fence_init();
  }
  arrive_cluster();
  wait_for_cluster();
  if (t < 32) {
    if (t == 0)
      for (int i = 0; i < steps; i++) {
        int s = i % S;
        if (i >= S) wait_cluster(&empty[s], i / S - 1 & 1);
        expect(&full[s], 2 * T * K * 4);
        // Half of A's rows for both blocks of this row, half of B's for both of this column
        cast(a[s][x * 8], &ma, i * K, blockIdx.y * T + x * 8, &full[s], 3 << 2 * y);
        cast(b[s][y * 8], &mb, i * K, blockIdx.x * T + y * 8, &full[s], 5 << x);
      }
  } else {
    int q = t - 32, row = q / 16, col = q % 16;
    float sum[2] = {0, 0};
    for (int i = 0; i < steps; i++) {
      int s = i % S;
      wait_cluster(&full[s], i / S & 1);
      for (int kk = 0; kk < K; kk++)
        for (int j = 0; j < 2; j++) sum[j] += a[s][row + 8 * j][kk] * b[s][col][kk];
      __syncwarp();
      int lane = q & 31;
      if (lane < 4 && (lane == me || lane == (me ^ 1) || lane == (me ^ 2))) arrive_far(far(&empty[s], lane));
    }
    for (int j = 0; j < 2; j++) c[(blockIdx.y * T + row + 8 * j) * n + blockIdx.x * T + col] = sum[j];
  }
  __syncwarp();
  arrive_cluster();
  wait_for_cluster();
}
