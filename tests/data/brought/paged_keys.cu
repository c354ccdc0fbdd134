// Decoding over pages: a table tells where each page of keys and values lies; a warp copies, another one attends
#include "units.cuh"
extern "C" __global__ void k(const float* q, const float* pages, const int* table, const int* lengths, float* y, int most) {
  constexpr int S = 3, P = 8, D = 32;
  __shared__ __align__(128) float kv[S][2][P][D];
  __shared__ u64 full[S], empty[S];
  int t = threadIdx.x, lane = t & 31, seq = blockIdx.x, length = lengths[seq], count = (length + P - 1) / P;
  if (t == 0) {
    for (int s = 0; s < S; s++) { init(&full[s], 1); init(&empty[s], 32); }
    fence_init();
  }
  __syncthreads(); // made
  if (t >= 32) {
    if (lane == 0)
      for (int i = 0; i < count; i++) {
        int s = i % S;
        if (i >= S) wait(&empty[s], (i / S - 1) & 1);
        expect(&full[s], sizeof kv[s]);
        load(kv[s], pages + (long)table[seq * most + i] * 2 * P * D, sizeof kv[s], &full[s]);
      }
    return;
  }
  float mine = q[seq * D + lane], m = -1e30f, l = 0, acc = 0;
  for (int i = 0; i < count; i++) {
    int s = i % S;
    wait(&full[s], i / S & 1);
    for (int j = 0; j < P && i * P + j < length; j++) {
      float dot = mine * kv[s][0][j][lane];
      for (int o = 16; o; o >>= 1) dot += __shfl_xor_sync(~0u, dot, o);
      float next = fmaxf(m, dot), scale = exp2f(m - next), p = exp2f(dot - next);
      acc = acc * scale + p * kv[s][1][j][lane];
      l = l * scale + p;
      m = next;
    }
    arrive(&empty[s]);
  }
  y[seq * D + lane] = acc / l;
}
