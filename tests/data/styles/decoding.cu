// Decoding attention: a cluster shares the keys of a query, and combines maxima, sums and outputs
#include "styles.cuh"
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const float* q, const float* keys, const float* values, float* out, int n) {
  constexpr int D = 32;
  __shared__ float m[4], l[4], o[4][D];        // of each warp
  __shared__ float gm, gl, go[D];              // of the block
  int t = threadIdx.x, w = t / 32, lane = t % 32, me = rank(), head = blockIdx.x / 2;
  float ql = q[head * D + lane], mx = -__int_as_float(0x7f800000), sum = 0, acc = 0;
  for (int j = me * 4 + w; j < n; j += 8) {
    float s = ql * keys[((long)head * n + j) * D + lane];
    for (int d = 16; d; d /= 2) s += __shfl_xor_sync(~0u, s, d);
    float now = fmaxf(mx, s), keep = exp2f(mx - now), p = exp2f(s - now);
    sum = sum * keep + p;
    acc = acc * keep + p * values[((long)head * n + j) * D + lane];
    mx = now;
  }
  o[w][lane] = acc;
  if (lane == 0) { m[w] = mx; l[w] = sum; }
  __syncthreads();
  if (w == 0) {
    float all = fmaxf(fmaxf(m[0], m[1]), fmaxf(m[2], m[3])), a = 0, b = 0;
    for (int i = 0; i < 4; i++) {
      float f = m[i] == -__int_as_float(0x7f800000) ? 0 : exp2f(m[i] - all);
      a += f * l[i];
      b += f * o[i][lane];
    }
    go[lane] = b;
    if (lane == 0) { gm = all; gl = a; }
  }
  cluster_sync();
  if (me == 0 && w == 0) {
    float om = get(far(&gm, 1)), ol = get(far(&gl, 1)), oo = get(far(&go[lane], 1));
    float all = fmaxf(gm, om), f = exp2f(gm - all), g = om == -__int_as_float(0x7f800000) ? 0 : exp2f(om - all);
    out[head * D + lane] = (f * go[lane] + g * oo) / (f * gl + g * ol);
  }
  cluster_sync();
}
