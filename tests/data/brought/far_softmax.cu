// The softmax of long rows over a cluster: maxima and sums are pushed to the first block and read back
#include "hopper.cuh"
__device__ void put(unsigned to, float v) { asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(to), "f"(v) : "memory"); }
__device__ float get(unsigned from) {
  float v; asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory"); return v; }
__device__ float block_all(float v, float* s, bool largest) {
  int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
  for (int d = 16; d; d >>= 1) { float o = __shfl_xor_sync(~0u, v, d); v = largest ? fmaxf(v, o) : v + o; }
  __syncthreads(); // free
  if (lane == 0) s[w] = v;
  __syncthreads(); // there
  return largest ? fmaxf(s[0], s[1]) : s[0] + s[1];
}
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const float* x, float* y, int n) {
  __shared__ float s[2], maxima[4], sums[4];
  int t = threadIdx.x, me = rank(), row = blockIdx.x / 4, i = me * 64 + t;
  float v = i < n ? x[row * n + i] : -1e30f, m = block_all(v, s, true);
  cluster_sync(); // begun
  if (t < 4) put(far(&maxima[me], t), m);
  cluster_sync(); // maxima
  m = fmaxf(fmaxf(maxima[0], maxima[1]), fmaxf(maxima[2], maxima[3]));
  float e = i < n ? exp2f(v - m) : 0, l = block_all(e, s, false);
  if (t == 0) sums[me] = l;
  cluster_sync(); // sums
  float all = 0;
  for (int j = 0; j < 4; j++) all += get(far(&sums[j], j));
  if (i < n) y[row * n + i] = e / all;
  cluster_sync(); // end
}
