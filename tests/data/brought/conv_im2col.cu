// A convolution of 3 x 3 as a product: columns of pixels come by TMA's im2col mode, tap by tap, in a ring of three
#include "units.cuh"
extern "C" __global__ void k(const __grid_constant__ Map x, const __grid_constant__ Map w, float* y, int wd, int h, int pixels) {
  constexpr int S = 3;
  __shared__ __align__(1024) u16 a[S][64 * 16], b[S][16 * 16];
  __shared__ u64 full[S], empty[S];
  int t = threadIdx.x, first = blockIdx.x * 64;
  if (t == 0) {
    for (int s = 0; s < S; s++) { init(&full[s], 1); init(&empty[s], 1); }
    fence_init();
  }
  __syncthreads(); // made
  if (t >= 128) {
    if (t == 128) {
      int q = first % wd, p = first / wd % h, n = first / wd / h;
      for (int i = 0; i < 9; i++) {
        int s = i % S;
        if (i >= S) wait(&empty[s], (i / S - 1) & 1);
        expect(&full[s], 64 * 32 + 16 * 32);
        column(a[s], &x, 0, q - 1, p - 1, n, i % 3, i / 3, &full[s]);
        box2(b[s], &w, i * 16, 0, &full[s]);
      }
    }
    return;
  }
  float d[8];
  for (int i = 0; i < 9; i++) {
    int s = i % S;
    wait(&full[s], i / S & 1);
    wg_fence();
    mma(d, desc(a[s], 256, 3), desc(b[s], 256, 3), i > 0);
    wg_commit();
    wg_wait<0>();
    if (t == 0) arrive(&empty[s]);
  }
  for (int j = 0; j < 8; j++) {
    int row = first + row_of(t, j);
    if (row < pixels) y[row * 16 + col_of(t, j)] = d[j];
  }
}
