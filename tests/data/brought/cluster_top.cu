// The two largest of a row and the sum of its exponentials, over a cluster: candidates are pushed to one block
#include "units.cuh"
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const float* x, float* top, float* sum, int n) {
  __shared__ float best[4][2], sums[4];
  __shared__ u64 there;
  int t = threadIdx.x, me = rank(), row = blockIdx.x / 4;
  if (t == 0) { init(&there, 4); fence_init(); }
  cluster_sync(); // begun
  float a = -1e30f, b = -1e30f, s = 0;
  for (int i = me * 32 + t; i < n; i += 128) {
    float v = x[row * n + i];
    s += exp2f(v);
    if (v > a) { b = a; a = v; } else if (v > b) b = v;
  }
  for (int d = 16; d; d >>= 1) {
    float oa = __shfl_xor_sync(~0u, a, d), ob = __shfl_xor_sync(~0u, b, d);
    b = fmaxf(fminf(a, oa), a > oa ? b : ob);
    a = fmaxf(a, oa);
    s += __shfl_xor_sync(~0u, s, d);
  }
  if (t == 0) {
    put_far(far(&best[me][0], 0), a);
    put_far(far(&best[me][1], 0), b);
    put_far(far(&sums[me], 0), s);
    arrive_far(far(&there, 0));
  }
  if (me == 0) {
    wait_cluster(&there, 0);
    if (t == 0) {
      a = b = -1e30f; s = 0;
      for (int j = 0; j < 4; j++) {
        float oa = best[j][0], ob = best[j][1];
        b = fmaxf(fminf(a, oa), a > oa ? b : ob);
        a = fmaxf(a, oa);
        s += sums[j];
      }
      top[row * 2] = a; top[row * 2 + 1] = b; sum[row] = s;
    }
  }
  cluster_sync(); // end
}
