// A persistent kernel with a scheduler: one warp takes tickets and hands tiles on in a ring, all others work on them
#include "units.cuh"
extern "C" __global__ void k(const float* x, float* y, int* ticket, int tiles) {
  constexpr int S = 2, N = 128;
  __shared__ __align__(128) float data[S][N];
  __shared__ int number[S];
  __shared__ u64 full[S], empty[S];
  int t = threadIdx.x;
  if (t == 0) {
    for (int s = 0; s < S; s++) { init(&full[s], 1); init(&empty[s], 64); }
    fence_init();
  }
  __syncthreads(); // made
  if (t >= 64) {
    if (t == 64)
      for (int i = 0;; i++) {
        int s = i % S;
        if (i >= S) wait(&empty[s], (i / S - 1) & 1);
        int tile = atomicAdd(ticket, 1);
        number[s] = tile;
        if (tile >= tiles) { arrive(&full[s]); break; }
        expect(&full[s], sizeof data[s]);
        load(data[s], x + tile * N, sizeof data[s], &full[s]);
      }
    return;
  }
  for (int i = 0;; i++) {
    int s = i % S;
    wait(&full[s], i / S & 1);
    int tile = number[s];
    if (tile >= tiles) break;
    for (int j = t; j < N; j += 64) y[tile * N + j] = data[s][j] * data[s][j];
    arrive(&empty[s]);
  }
}
