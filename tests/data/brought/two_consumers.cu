// 128 rows for two warpgroups, k of 64 in swizzles of 128 bytes; each stage is freed when the next product has begun
#include "units.cuh"
DEV bool chosen() {
  u32 p;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p; }" : "=r"(p));
  return p;
}
extern "C" __global__ void __launch_bounds__(384, 1) k(const __grid_constant__ Map a, const __grid_constant__ Map b, float* c, int n, int steps) {
  constexpr int S = 3;
  extern __shared__ __align__(1024) unsigned char room[];
  u16* sa = (u16*)room;
  u16* sb = sa + S * 128 * 64;
  __shared__ u64 full[S], empty[S];
  int t = threadIdx.x, group = t / 128, w = t % 128, row = blockIdx.y * 128, col = blockIdx.x * 16;
  if (t == 0) {
    for (int s = 0; s < S; s++) { init(&full[s], 1); init(&empty[s], 2); }
    fence_init();
  }
  __syncthreads(); // made
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (w < 32 && chosen())
      for (int i = 0; i < steps; i++) {
        int s = i % S;
        wait(&empty[s], (i / S & 1) ^ 1);
        expect(&full[s], (128 + 16) * 128);
        box2(sa + s * 128 * 64, &a, i * 64, row, &full[s]);
        box2(sb + s * 16 * 64, &b, i * 64, col, &full[s]);
      }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  float d[8];
  for (int i = 0; i < steps; i++) {
    int s = i % S;
    wait(&full[s], i / S & 1);
    wg_fence();
    u64 left = desc(sa + (s * 128 + (group - 1) * 64) * 64, 1024, 1), right = desc(sb + s * 16 * 64, 1024, 1);
    for (int j = 0; j < 4; j++) mma(d, left + j * 2, right + j * 2, i + j > 0);
    wg_commit();
    wg_wait<1>();
    if (i > 0 && w == 0) arrive(&empty[(i - 1) % S]);
  }
  wg_wait<0>();
  for (int j = 0; j < 8; j++) c[(row + (group - 1) * 64 + row_of(w, j)) * n + col + col_of(w, j)] = d[j];
}
