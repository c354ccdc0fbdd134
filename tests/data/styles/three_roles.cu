// Three roles: a warp loads by TMA, two scale, one stores by TMA, with named barriers
#include "styles.cuh"
extern "C" __global__ void k(const float* x, float* y, int tiles, float by) {
  constexpr int N = 128, S = 3;
  __shared__ alignas(128) float in[S][N], out[2][N];
  __shared__ u64 full[S], empty[S];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < S; s++) { init(&full[s], 1); init(&empty[s], 2); }
    fence_init();
  }
  __syncthreads();
  if (warp == 0) {                       // producer
    if (elect())
      for (int i = 0; i < tiles; i++) {
        int s = i % S, turn = i / S;
        wait(&empty[s], (turn & 1) ^ 1);
        expect(&full[s], N * 4);
        load(in[s], x + i * N, N * 4, &full[s]);
      }
  } else if (warp <= 2) {               // math
    for (int i = 0; i < tiles; i++) {
      int s = i % S;
      wait(&full[s], i / S & 1);
      float v[2];
      for (int j = 0; j < 2; j++) v[j] = in[s][(warp - 1) * 64 + j * 32 + lane];
      __syncwarp();
      if (lane == 0) arrive(&empty[s]);
      if (i & 1) named_sync<4>(96); else named_sync<3>(96);   // the box is free
      for (int j = 0; j < 2; j++) out[i & 1][(warp - 1) * 64 + j * 32 + lane] = v[j] * by;
      fence_async();
      if (i & 1) named_arrive<2>(96); else named_arrive<1>(96);
    }
  } else {                              // epilogue
    named_arrive<3>(96);
    if (tiles > 1) named_arrive<4>(96);
    for (int i = 0; i < tiles; i++) {
      if (i & 1) named_sync<2>(96); else named_sync<1>(96);
      if (lane == 0) {
        store(y + i * N, out[i & 1], N * 4);
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
      }
      __syncwarp();
      if (i > 0 && i + 1 < tiles) { if (i & 1) named_arrive<3>(96); else named_arrive<4>(96); }
    }
    if (lane == 0) wait_read();
  }
}
