// Weights of 4 bits times bf16: they are widened in registers, from which wgmma takes A
#include "units.cuh"
extern "C" __global__ void k(const u32* w, const float* scales, const __grid_constant__ Map x, float* y, int rows, int n, int steps) {
  constexpr int S = 3;
  __shared__ __align__(1024) u16 sx[S][16 * 16];
  __shared__ u64 full[S];
  int t = threadIdx.x, row = blockIdx.y * 64, col = blockIdx.x * 16, r = row + t / 32 * 16 + t % 32 / 4, q = t % 4;
  if (t == 0) {
    for (int s = 0; s < S; s++) init(&full[s], 1);
    fence_init();
  }
  __syncthreads(); // made
  auto fetch = [&](int i) { expect(&full[i % S], 16 * 32); box2(sx[i % S], &x, i * 16, col, &full[i % S]); };
  if (t == 0) for (int i = 0; i < S - 1 && i < steps; i++) fetch(i);
  float d[8] = {};
  for (int i = 0; i < steps; i++) {
    u32 a[4];
    for (int j = 0; j < 4; j++) {
      int at = r + j % 2 * 8;
      u32 word = w[at * steps * 2 + i * 2 + j / 2] >> q * 8;
      float s = scales[at * steps + i];
      a[j] = pair(s * (float)((int)(word & 15) - 8), s * (float)((int)(word >> 4 & 15) - 8));
    }
    if (t == 0 && i + S - 1 < steps) fetch(i + S - 1);
    wait(&full[i % S], i / S & 1);
    wg_fence();
    mma_from(d, a, desc(sx[i % S], 256, 3), 1);
    wg_commit();
    wg_wait<0>();
    __syncthreads(); // used
  }
  for (int j = 0; j < 8; j++) y[(row + row_of(t, j)) * n + col + col_of(t, j)] = d[j];
}
