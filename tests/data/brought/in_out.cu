// Vectors scaled in place: bulk copies in, and out again, two stages, each free when its store has been read
#include "hopper.cuh"
extern "C" __global__ void k(float* x, float scale, int n) {
  __shared__ alignas(128) float stage[2][128]; __shared__ alignas(8) u64 bars[2];
  int t = threadIdx.x, tiles = (n + 127) / 128, step = gridDim.x;
  auto bytes = [&](int tile) { return min(128, n - tile * 128) * 4; };
  if (t == 0) { init(&bars[0], 1); init(&bars[1], 1); fence_init(); }
  __syncthreads(); // made
  if (t == 0 && blockIdx.x < tiles) {
    expect(&bars[0], bytes(blockIdx.x));
    load(stage[0], x + blockIdx.x * 128, bytes(blockIdx.x), &bars[0]);
  }
  for (int tile = blockIdx.x, i = 0; tile < tiles; tile += step, i++) {
    int s = i & 1, next = tile + step;
    if (t == 0 && next < tiles) {
      wait_read();
      expect(&bars[s ^ 1], bytes(next));
      load(stage[s ^ 1], x + next * 128, bytes(next), &bars[s ^ 1]);
    }
    wait(&bars[s], i >> 1 & 1);
    if (tile * 128 + t < n) stage[s][t] *= scale;
    fence_async();
    __syncthreads(); // scaled
    if (t == 0) store(x + tile * 128, stage[s], bytes(tile));
  }
  if (t == 0) wait_all();
}
