// A persistent product in ping-pong: two warpgroups take tiles in turns by named barriers, and store by TMA
#include "units.cuh"
extern "C" __global__ void k(const __grid_constant__ Map a, const __grid_constant__ Map b, const __grid_constant__ Map c, int across, int tiles, int steps) {
  constexpr int S = 4;
  __shared__ __align__(1024) u16 sa[S][64 * 16], sb[S][16 * 16];
  __shared__ __align__(128) float out[2][64 * 16];
  __shared__ u64 full[S], empty[S];
  int t = threadIdx.x, group = t / 128, w = t % 128;
  if (t == 0) {
    for (int s = 0; s < S; s++) { init(&full[s], 1); init(&empty[s], 1); }
    fence_init();
  }
  __syncthreads(); // made
  if (group == 2) {
    if (w == 0) {
      int i = 0;
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)
        for (int j = 0; j < steps; j++, i++) {
          int s = i % S;
          if (i >= S) wait(&empty[s], (i / S - 1) & 1);
          expect(&full[s], 64 * 32 + 16 * 32);
          box2(sa[s], &a, j * 16, tile / across * 64, &full[s]);
          box2(sb[s], &b, j * 16, tile % across * 16, &full[s]);
        }
    }
    return;
  }
  if (group == 1) named_arrive(2, 256);
  int n = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, n++) {
    if ((n & 1) != group) continue;
    float d[8];
    named(1 + (group ^ 1), 256); // my turn
    for (int j = 0; j < steps; j++) {
      int i = n * steps + j, s = i % S;
      wait(&full[s], i / S & 1);
      wg_fence();
      mma(d, desc(sa[s], 256, 3), desc(sb[s], 256, 3), j > 0);
      wg_commit();
      wg_wait<0>();
      if (w == 0) arrive(&empty[s]);
    }
    named_arrive(1 + group, 256); // the other's turn
    if (w == 0) read_but<0>();
    named(3 + group, 128); // free
    for (int j = 0; j < 8; j++) out[group][row_of(w, j) * 16 + col_of(w, j)] = d[j];
    fence_async();
    named(3 + group, 128); // written
    if (w == 0) { store2(&c, tile % across * 16, tile / across * 64, out[group]); commit(); }
  }
  if ((n & 1) == group) named(1 + (group ^ 1), 256); // the last turn of the other one
  if (w == 0) read_but<0>();
}
