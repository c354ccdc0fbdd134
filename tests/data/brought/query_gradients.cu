// Gradients of queries: each block has some keys, and adds its product to all by cp.reduce.async.bulk
#include "units.cuh"
extern "C" __global__ void k(const __grid_constant__ Map ds, const __grid_constant__ Map keys, float* dq, int tiles) {
  __shared__ __align__(1024) u16 sk[16 * 16], ss[2][64 * 16];
  __shared__ __align__(128) float out[2][64 * 16];
  __shared__ u64 full[2], there;
  int t = threadIdx.x, key = blockIdx.x * 16;
  if (t == 0) { init(&full[0], 1); init(&full[1], 1); init(&there, 1); fence_init(); }
  __syncthreads(); // made
  if (t == 0) {
    expect(&there, 16 * 32);
    box2(sk, &keys, 0, key, &there);
    for (int i = 0; i < 2 && i < tiles; i++) { expect(&full[i], 64 * 32); box2(ss[i], &ds, key, i * 64, &full[i]); }
  }
  wait(&there, 0);
  for (int i = 0; i < tiles; i++) {
    int s = i & 1;
    float d[8];
    wait(&full[s], i / 2 & 1);
    wg_fence();
    mma_across(d, desc(ss[s], 256, 3), desc(sk, 256, 3), 0);
    wg_commit();
    wg_wait<0>();
    if (t == 0) read_but<1>();
    __syncthreads(); // free
    for (int j = 0; j < 8; j++) out[s][row_of(t, j) * 16 + col_of(t, j)] = d[j];
    fence_async();
    __syncthreads(); // written
    if (t == 0) {
      if (i + 2 < tiles) { expect(&full[s], 64 * 32); box2(ss[s], &ds, key, (i + 2) * 64, &full[s]); }
      add_bulk(dq + i * 64 * 16, out[s], sizeof out[s]);
      commit();
    }
  }
  if (t == 0) read_but<0>();
}
