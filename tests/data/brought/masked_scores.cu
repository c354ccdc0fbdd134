// Causal attention: scores of 64 x 16, weights turned to operands in registers, values taken across; keys in a ring
#include "units.cuh"
extern "C" __global__ void k(const __grid_constant__ Map q, const __grid_constant__ Map keys, const __grid_constant__ Map values, float* out, int length) {
  constexpr int S = 2;
  __shared__ __align__(1024) u16 sq[64 * 16], sk[S][16 * 16], sv[S][16 * 16];
  __shared__ u64 full[S], ready;
  int t = threadIdx.x, first = blockIdx.x * 64, tiles = min(length, first + 64) / 16;
  if (t == 0) { init(&full[0], 1); init(&full[1], 1); init(&ready, 1); fence_init(); }
  __syncthreads(); // made
  auto fetch = [&](int i) {
    expect(&full[i % S], 2 * 16 * 32);
    box2(sk[i % S], &keys, 0, i * 16, &full[i % S]);
    box2(sv[i % S], &values, 0, i * 16, &full[i % S]);
  };
  if (t == 0) {
    expect(&ready, 64 * 32);
    box2(sq, &q, 0, first, &ready);
    fetch(0); fetch(1);
  }
  float m[2] = {-1e30f, -1e30f}, l[2] = {}, o[8] = {};
  wait(&ready, 0);
  for (int i = 0; i < tiles; i++) {
    float s[8];
    wait(&full[i % S], i / S & 1);
    wg_fence();
    mma(s, desc(sq, 256, 3), desc(sk[i % S], 256, 3), 0);
    wg_commit();
    wg_wait<0>();
    for (int h = 0; h < 2; h++) {
      float best = m[h], sum = 0;
      for (int j = 0; j < 8; j++) {
        if (j / 2 % 2 != h) continue;
        if (i * 16 + col_of(t, j) > first + row_of(t, j)) s[j] = -1e30f;
        best = fmaxf(best, s[j]);
      }
      for (int d = 1; d < 4; d *= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, d));
      float scale = exp2f(m[h] - best);
      for (int j = 0; j < 8; j++) {
        if (j / 2 % 2 != h) continue;
        s[j] = exp2f(s[j] - best);
        sum += s[j];
        o[j] *= scale;
      }
      for (int d = 1; d < 4; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
      l[h] = l[h] * scale + sum;
      m[h] = best;
    }
    u32 p[4] = {pair(s[0], s[1]), pair(s[2], s[3]), pair(s[4], s[5]), pair(s[6], s[7])};
    wg_fence(); // weights
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 " EIGHT ", {%8, %9, %10, %11}, %12, 1, 1, 1, 1;"
                 : OUT8(o) : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(desc(sv[i % S], 256, 3)));
    wg_commit(); // values
    wg_wait<0>(); // values
    __syncthreads(); // used
    if (t == 0 && i + S < tiles) fetch(i + S);
  }
  for (int j = 0; j < 8; j++) out[(first + row_of(t, j)) * 16 + col_of(t, j)] = o[j] / l[j / 2 % 2];
}
