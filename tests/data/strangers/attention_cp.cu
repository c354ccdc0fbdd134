#include <cuda_pipeline.h>
// Attention for head size 64: K and V tiles of 32 rows come by cp.async, double-buffered
constexpr int D = 64, T = 32;
__global__ void attention_cp(const float* Q, const float* K, const float* V, float* O, int heads, int n) {
  __shared__ float4 ks[2][T][D / 4], vs[2][T][D / 4];
  const size_t base = (size_t)blockIdx.y * n * D;
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  float q[D], acc[D], m = -1e30f, l = 0.f;
  for (int d = 0; d < D; d++) { q[d] = row < n ? Q[base + row * D + d] * 0.125f : 0.f; acc[d] = 0.f; }
  const int tiles = (n + T - 1) / T;
  auto fetch = [&](int t) {
    for (int e = threadIdx.x; e < T * D / 4; e += blockDim.x) {
      int r = e / (D / 4), c = e % (D / 4), g = t * T + r;
      if (g < n) {
        __pipeline_memcpy_async(&ks[t & 1][r][c], K + base + g * D + c * 4, 16);
        __pipeline_memcpy_async(&vs[t & 1][r][c], V + base + g * D + c * 4, 16);
      }
    }
    __pipeline_commit();
  };
  fetch(0);
  for (int t = 0; t < tiles; t++) {
    if (t + 1 < tiles) fetch(t + 1); else __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    int rows = min(T, n - t * T);
    for (int j = 0; j < rows; j++) {
      const float* k = (const float*)ks[t & 1][j]; const float* v = (const float*)vs[t & 1][j];
      float s = 0.f;
#pragma unroll
      for (int d = 0; d < D; d++) s += q[d] * k[d];
      float top = fmaxf(m, s), f = __expf(m - top), p = __expf(s - top);
      l = l * f + p; m = top;
#pragma unroll
      for (int d = 0; d < D; d++) acc[d] = acc[d] * f + p * v[d];
    }
    __syncthreads();
  }
  if (row < n) for (int d = 0; d < D; d++) O[base + row * D + d] = acc[d] / l;
}
void run(float* q, int heads, int n) { attention_cp<<<dim3((n + 63) / 64, heads), 64>>>(q, q, q, q, heads, n); }
