// Stream-K: blocks take equal shares of all steps, parts are added in order by flags in global memory
#include "styles.cuh"
extern "C" __global__ void k(const float* a, const float* b, float* c, float* parts, int* flags, int tiles, int steps, int share) {
  // Each tile is 64 sums of `steps` slices; a block's share may begin and end inside of tiles
  __shared__ alignas(128) float sa[2][64], sb[2][64];
  __shared__ alignas(8) u64 full[2];
  int t = threadIdx.x, me = blockIdx.x, n = 0;
  if (t == 0) { init(&full[0], 1); init(&full[1], 1); fence_init(); }
  __syncthreads();
  int first = me * share, end = min(first + share, tiles * steps);
  auto fetch = [&](int i) {
    int s = (i - first) & 1;
    expect(&full[s], 512);
    load(sa[s], a + i * 64, 256, &full[s]);
    load(sb[s], b + i * 64, 256, &full[s]);
  };
  if (t == 0 && first < end) fetch(first);
  for (int i = first; i < end;) {
    int tile = i / steps, stop = min(end, (tile + 1) * steps);
    bool begins = i == tile * steps, finishes = stop == (tile + 1) * steps;
    float sum = 0;
    for (; i < stop; i++, n++) {
      if (t == 0 && i + 1 < end) fetch(i + 1);
      wait(&full[n & 1], n >> 1 & 1);
      sum += sa[n & 1][t] * sb[n & 1][t];
      __syncthreads();
    }
    if (!finishes) {                         // leave a part for the block that finishes the tile
      parts[me * 64 + t] = sum;
      __syncthreads();
      if (t == 0) asm volatile("st.release.gpu.global.s32 [%0], 1;" :: "l"(flags + me) : "memory");
    } else {
      if (!begins) {
        int from = tile * steps / share;
        for (int p = from; p < me; p++) {
          if (t == 0) {
            int seen;
            do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(flags + p) : "memory");
            while (!seen);
          }
          __syncthreads();
          sum += parts[p * 64 + t];
        }
      }
      c[tile * 64 + t] = sum;
    }
  }
}
