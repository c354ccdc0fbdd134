// Rows of any length by bulk copies: one warp fetches a row for each stage of a ring, the others add up
#include "hopper.cuh"
extern "C" __global__ void k(const float* x, const int* starts, float* sums, int rows) {
  __shared__ alignas(128) float ring[3][64]; __shared__ alignas(8) u64 full[3], empty[3]; __shared__ int lengths[3];
  int t = threadIdx.x, lane = t & 31, w = t >> 5;
  if (t == 0) for (int s = 0; s < 3; s++) { init(&full[s], 1); init(&empty[s], 2); }
  if (t == 0) fence_init();
  __syncthreads(); // made
  if (w == 0) {
    if (lane == 0)
      for (int r = blockIdx.x, i = 0; r < rows; r += gridDim.x, i++) {
        int s = i % 3, from = starts[r], n = starts[r + 1] - from;
        wait(&empty[s], i / 3 & 1 ^ 1);
        lengths[s] = n;
        if (n) { expect(&full[s], n * 4); load(ring[s], x + from, n * 4, &full[s]); }
        else arrive(&full[s]);
      }
  } else {
    __shared__ float parts[2];
    for (int r = blockIdx.x, i = 0; r < rows; r += gridDim.x, i++) {
      int s = i % 3;
      wait(&full[s], i / 3 & 1);
      int n = lengths[s], j = (w - 1) * 32 + lane;
      float v = j < n ? ring[s][j] : 0;
      for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
      __syncwarp(); // read
      if (lane == 0) { parts[w - 1] = v; arrive(&empty[s]); }
      asm volatile("bar.sync 1, 64;" ::: "memory"); // parts
      if (t == 32) sums[r] = parts[0] + parts[1];
      asm volatile("bar.sync 1, 64;" ::: "memory"); // free
    }
  }
}
