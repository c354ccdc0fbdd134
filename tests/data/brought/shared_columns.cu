// A product in clusters of two: each block loads half of B for both by multicast, and frees stages of both
#include "units.cuh"
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const __grid_constant__ Map a, const __grid_constant__ Map b, float* c, int n, int steps) {
  constexpr int S = 2;
  __shared__ __align__(1024) u16 sa[S][64 * 16], sb[S][16 * 16];
  __shared__ u64 full[S], empty[S];
  int t = threadIdx.x, me = rank(), row = blockIdx.x * 64, col = blockIdx.y * 16;
  if (t == 0) {
    for (int s = 0; s < S; s++) { init(&full[s], 1); init(&empty[s], 2); }
    fence_init();
  }
  cluster_sync(); // begun
  if (t >= 128) {
    if (t == 128)
      for (int i = 0; i < steps; i++) {
        int s = i % S;
        if (i >= S) wait(&empty[s], (i / S - 1) & 1);
        expect(&full[s], 64 * 32 + 16 * 32);
        box2(sa[s], &a, i * 16, row, &full[s]);
        box2_all(sb[s] + me * 8 * 16, &b, i * 16, col + me * 8, &full[s], 3);
      }
  } else {
    float d[8];
    for (int i = 0; i < steps; i++) {
      int s = i % S;
      wait(&full[s], i / S & 1);
      wg_fence();
      mma(d, desc(sa[s], 256, 3), desc(sb[s], 256, 3), i > 0);
      wg_commit();
      wg_wait<0>();
      if (t < 2) arrive_far(far(&empty[s], t));
    }
    for (int j = 0; j < 8; j++) c[(row + row_of(t, j)) * n + col + col_of(t, j)] = d[j];
  }
  cluster_sync(); // end
}
