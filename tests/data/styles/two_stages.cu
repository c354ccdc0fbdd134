// Flash attention on CUDA cores, keys and values two stages ahead by __pipeline_memcpy_async
#include <cuda_pipeline.h>
extern "C" __global__ void k(const float* q, const float* key, const float* value, float* out, int n) {
  constexpr int D = 16, T = 16;
  __shared__ __align__(16) float ks[2][T][D], vs[2][T][D];
  int t = threadIdx.x, row = blockIdx.x * 64 + t, tiles = (n + T - 1) / T;
  auto fetch = [&](int i) {
    int r = t / 4, c = t % 4 * 4, at = i * T + r;
    int zero = at < n ? 0 : 16;
    __pipeline_memcpy_async(&ks[i & 1][r][c], key + min(at, n - 1) * D + c, 16, zero);
    __pipeline_memcpy_async(&vs[i & 1][r][c], value + min(at, n - 1) * D + c, 16, zero);
    __pipeline_commit();
  };
  float mine[D], o[D] = {}, m = -1e30f, l = 0;
  for (int d = 0; d < D; d++) mine[d] = row < n ? q[row * D + d] : 0;
  fetch(0);
  for (int i = 0; i < tiles; i++) {
    if (i + 1 < tiles) { fetch(i + 1); __pipeline_wait_prior(1); } else __pipeline_wait_prior(0);
    __syncthreads();
    for (int j = 0; j < T && i * T + j < n; j++) {
      float s = 0;
      for (int d = 0; d < D; d++) s += mine[d] * ks[i & 1][j][d];
      float now = fmaxf(m, s), keep = exp2f(m - now), p = exp2f(s - now);
      for (int d = 0; d < D; d++) o[d] = o[d] * keep + p * vs[i & 1][j][d];
      l = l * keep + p; m = now;
    }
    __syncthreads();
  }
  if (row < n) for (int d = 0; d < D; d++) out[row * D + d] = o[d] / l;
}
