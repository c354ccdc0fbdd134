// Mixed input: bytes are widened in registers for A of a wgmma, B by TMA, products promoted by scale
#include "styles.cuh"
extern "C" __global__ void k(const signed char* a, const float* scales, const __grid_constant__ Map mb, float* c, int k) {
  __shared__ alignas(1024) u16 b[2][16 * 64];
  __shared__ alignas(8) u64 full[2];
  int t = threadIdx.x, w = t / 32, lane = t % 32, steps = k / 64;
  if (t == 0) { init(&full[0], 1); init(&full[1], 1); fence_init(); }
  __syncthreads();
  auto fetch = [&](int i) {
    if (t == 0 && i < steps) { expect(&full[i & 1], sizeof b[0]); box_load(b[i & 1], &mb, i * 64, 0, &full[i & 1]); } };
  fetch(0);
  float sum[8] = {};
  for (int i = 0; i < steps; i++) {
    fetch(i + 1);
    u32 x[4][4];
    for (int kk = 0; kk < 4; kk++)
      for (int j = 0; j < 4; j++) {
        int row = w * 16 + lane / 4 + j % 2 * 8, col = i * 64 + kk * 16 + lane % 4 * 2 + j / 2 * 8;
        x[kk][j] = pack((float)a[row * k + col], (float)a[row * k + col + 1]);
      }
    wait(&full[i & 1], i >> 1 & 1);
    float d[8];
    fence_products();
    for (int kk = 0; kk < 4; kk++) mma16r(d, x[kk], desc128(b[i & 1]) + 2 * kk, kk);
    commit();
    wait_products<0>();
    for (int j = 0; j < 8; j++) sum[j] += scales[i] * d[j];
    __syncthreads();
  }
  for (int j = 0; j < 8; j++)
    c[(w * 16 + lane / 4 + j / 2 % 2 * 8) * 16 + j / 4 * 8 + lane % 4 * 2 + j % 2] = sum[j];
}
