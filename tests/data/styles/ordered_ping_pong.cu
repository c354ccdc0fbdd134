// Ping-pong: two warpgroups take turns by an ordered barrier, results by stmatrix and a TMA store
#include "styles.cuh"
extern "C" __global__ void k(const __grid_constant__ Map ma, const __grid_constant__ Map mb, const __grid_constant__ Map mc, int tiles, int k) {
  constexpr int S = 3;
  __shared__ alignas(1024) u16 a[S][64 * 64], b[S][16 * 64];
  __shared__ alignas(128) u16 out[2][64 * 16];
  __shared__ alignas(8) u64 full[S], empty[S], turn[2][2];     // of each group: mainloop, epilogue
  int t = threadIdx.x % 128, group = threadIdx.x / 128, steps = (k + 63) / 64;
  if (threadIdx.x == 0) {
    for (int s = 0; s < S; s++) { init(&full[s], 1); init(&empty[s], 1); }
    for (int i = 0; i < 4; i++) init(&turn[i / 2][i % 2], 128);
    fence_init();
  }
  __syncthreads();
  if (group == 2) {
    if (t == 0)
      for (int i = 0; i < tiles * steps; i++) {
        int s = i % S, tile = i / steps, x = i % steps * 64;
        wait(&empty[s], i / S & 1 ^ 1);
        expect(&full[s], sizeof a[0] + sizeof b[0]);
        box_load(a[s], &ma, x, tile * 64, &full[s]);
        box_load(b[s], &mb, x, 0, &full[s]);
      }
    return;
  }
  int n = 0;                                                  // of the turns of this group
  if (group == 1) { arrive(&turn[0][0]); arrive(&turn[0][1]); }
  for (int tile = group; tile < tiles; tile += 2, n++) {
    float d[8];
    wait(&turn[group][0], n & 1);
    for (int j = 0; j < steps; j++) {
      int i = tile * steps + j, s = i % S;
      wait(&full[s], i / S & 1);
      fence_products();
      for (int kk = 0; kk < 4; kk++) mma16(d, desc128(a[s]) + 2 * kk, desc128(b[s]) + 2 * kk, j | kk);
      commit();
      wait_products<0>();
      if (t == 0) arrive(&empty[s]);
    }
    arrive(&turn[group ^ 1][0]);
    wait(&turn[group][1], n & 1);
    if (t == 0) wait_read();
    asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");
    int w = t / 32, lane = t % 32;
    u16* to = &out[group][(w * 16 + lane % 16) * 16 + lane / 16 * 8];
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" :: "r"(at(to)),
      "r"(pack(d[0], d[1])), "r"(pack(d[2], d[3])), "r"(pack(d[4], d[5])), "r"(pack(d[6], d[7])) : "memory");
    fence_async();
    asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");
    if (t == 0) box_store(&mc, 0, tile * 64, out[group]);
    arrive(&turn[group ^ 1][1]);
  }
  if (t == 0) wait_all();
}
