// A product of a 2:4 sparse matrix: its stored half and B by TMA, the metadata by loads
#include "units.cuh"
extern "C" __global__ void k(const __grid_constant__ Map a, const __grid_constant__ Map b, const u32* e, float* c, int n, int steps) {
  constexpr int S = 2;
  __shared__ __align__(1024) u16 sa[S][64 * 16], sb[S][16 * 32];
  __shared__ u64 full[S];
  int t = threadIdx.x, row = blockIdx.y * 64, col = blockIdx.x * 16;
  if (t == 0) {
    for (int s = 0; s < S; s++) init(&full[s], 1);
    fence_init();
  }
  __syncthreads(); // made
  auto fetch = [&](int i) {
    expect(&full[i % S], 64 * 32 + 16 * 64);
    box2(sa[i % S], &a, i * 16, row, &full[i % S]);
    box2(sb[i % S], &b, i * 32, col, &full[i % S]);
  };
  if (t == 0) for (int i = 0; i < S && i < steps; i++) fetch(i);
  float d[8] = {};
  for (int i = 0; i < steps; i++) {
    u32 meta = e[(blockIdx.y * steps + i) * 128 + t];
    wait(&full[i % S], i / S & 1);
    wg_fence();
    mma_sparse(d, desc(sa[i % S], 256, 3), desc(sb[i % S], 512, 2), meta, 1);
    wg_commit();
    wg_wait<0>();
    __syncthreads(); // read
    if (t == 0 && i + S < steps) fetch(i + S);
  }
  for (int j = 0; j < 8; j++) c[(row + row_of(t, j)) * n + col + col_of(t, j)] = d[j];
}
