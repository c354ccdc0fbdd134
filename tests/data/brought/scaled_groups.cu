// A grouped product of 8 bits with a scale for each block along k: partial products are promoted in registers
#include "units.cuh"
extern "C" __global__ void k(const __grid_constant__ Map a, const __grid_constant__ Map b, const float* sa, const float* sb, const int* ends, float* c, int rows, int n, int steps) {
  constexpr int S = 2;
  __shared__ __align__(1024) unsigned char ta[S][64 * 32], tb[S][16 * 32];
  __shared__ u64 full[S], empty[S];
  int t = threadIdx.x, row = blockIdx.y * 64, col = blockIdx.x * 16, group = 0;
  while (ends[group] <= row) group++;
  if (t == 0) {
    for (int s = 0; s < S; s++) { init(&full[s], 1); init(&empty[s], 4); }
    fence_init();
  }
  __syncthreads(); // made
  if (t >= 128) {
    if (t == 128)
      for (int i = 0; i < steps; i++) {
        int s = i % S;
        if (i >= S) wait(&empty[s], (i / S - 1) & 1);
        expect(&full[s], sizeof ta[s] + sizeof tb[s]);
        box2(ta[s], &a, i * 32, row, &full[s]);
        box2(tb[s], &b, i * 32, group * n + col, &full[s]);
      }
    return;
  }
  float total[8] = {};
  for (int i = 0; i < steps; i++) {
    int s = i % S;
    float d[8];
    wait(&full[s], i / S & 1);
    wg_fence();
    mma_e4m3(d, desc(ta[s], 256, 3), desc(tb[s], 256, 3), 0);
    wg_commit();
    wg_wait<0>();
    if (t % 32 == 0) arrive(&empty[s]);
    float by = sb[group * steps + i];
    for (int j = 0; j < 8; j++) total[j] += d[j] * by * sa[i * rows + row + row_of(t, j)];
  }
  for (int j = 0; j < 8; j++) {
    int r = row + row_of(t, j);
    if (r < ends[group]) c[r * n + col + col_of(t, j)] = total[j];
  }
}
