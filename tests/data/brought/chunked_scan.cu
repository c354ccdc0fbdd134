// A selective scan in chunks: decays and inputs by bulk loads, states by bulk stores, two buffers each
#include "units.cuh"
extern "C" __global__ void k(const float* a, const float* x, float* y, int chunks) {
  constexpr int L = 16, C = 32;
  __shared__ __align__(128) float sa[2][L][C], sx[2][L][C], sy[2][L][C];
  __shared__ u64 full[2];
  int t = threadIdx.x;
  long base = (long)blockIdx.x * chunks * L * C;
  if (t == 0) { init(&full[0], 1); init(&full[1], 1); fence_init(); }
  __syncwarp(); // made
  auto fetch = [&](int i) {
    int s = i & 1;
    expect(&full[s], 2 * sizeof sa[s]);
    load(sa[s], a + base + i * L * C, sizeof sa[s], &full[s]);
    load(sx[s], x + base + i * L * C, sizeof sx[s], &full[s]);
  };
  if (t == 0) { fetch(0); if (chunks > 1) fetch(1); }
  float h = 0;
  for (int i = 0; i < chunks; i++) {
    int s = i & 1;
    wait(&full[s], i / 2 & 1);
    if (t == 0) read_but<1>();
    __syncwarp(); // free
    for (int j = 0; j < L; j++) { h = sa[s][j][t] * h + sx[s][j][t]; sy[s][j][t] = h; }
    fence_async();
    __syncwarp(); // scanned
    if (t == 0) {
      if (i + 2 < chunks) fetch(i + 2);
      store(y + base + i * L * C, sy[s], sizeof sy[s]);
    }
  }
  if (t == 0) read_but<0>(); // stored
}
