// Stream-K with semaphores: units of a tile are added in the order of their number, so that sums are always the same
#include "units.cuh"
extern "C" __global__ void k(const __grid_constant__ Map a, const __grid_constant__ Map b, float* c, int* turn, int n, int steps, int units) {
  __shared__ __align__(1024) u16 sa[2][64 * 16], sb[2][16 * 16];
  __shared__ u64 full[2];
  int t = threadIdx.x, each = (units + gridDim.x - 1) / gridDim.x, i = blockIdx.x * each, end = min(i + each, units), seen = 0;
  if (t == 0) { init(&full[0], 1); init(&full[1], 1); fence_init(); }
  __syncthreads(); // made
  while (i < end) {
    int tile = i / steps, first = i % steps, stop = min(steps, first + end - i), row = tile / (n / 16) * 64, col = tile % (n / 16) * 16;
    float d[8];
    for (int j = first; j < stop; j++, seen++) {
      int s = seen & 1;
      if (t == 0) {
        expect(&full[s], 64 * 32 + 16 * 32);
        box2(sa[s], &a, j * 16, row, &full[s]);
        box2(sb[s], &b, j * 16, col, &full[s]);
      }
      wait(&full[s], seen / 2 & 1);
      wg_fence();
      mma(d, desc(sa[s], 256, 3), desc(sb[s], 256, 3), j > first);
      wg_commit();
      wg_wait<0>();
      __syncthreads(); // used
    }
    if (t == 0) while (acquire(&turn[tile]) != first) ;
    __syncthreads(); // my turn
    for (int j = 0; j < 8; j++) {
      float* to = &c[(row + row_of(t, j)) * n + col + col_of(t, j)];
      *to = first ? *to + d[j] : d[j];
    }
    __syncthreads(); // added
    if (t == 0) release(&turn[tile], stop == steps ? 0 : stop);
    i += stop - first;
  }
}
