// Latent decoding, keys split over blocks: rows are keys and values at once; the last block of a sequence combines
#include "units.cuh"
extern "C" __global__ void k(const float* q, const float* latent, float* part, int* arrived, float* y, int keys) {
  constexpr int D = 32, R = 16;
  __shared__ __align__(128) float rows[2][R][D];
  __shared__ float score[R];
  __shared__ u64 full[2];
  __shared__ int last;
  int t = threadIdx.x, lane = t & 31, warp = t >> 5, splits = gridDim.x, seq = blockIdx.y;
  int each = keys / splits, first = blockIdx.x * each, tiles = each / R;
  const float* from = latent + (long)(seq * keys + first) * D;
  if (t == 0) {
    init(&full[0], 1); init(&full[1], 1); fence_init();
    for (int i = 0; i < 2 && i < tiles; i++) { expect(&full[i], sizeof rows[i]); load(rows[i], from + i * R * D, sizeof rows[i], &full[i]); }
  }
  __syncthreads(); // made
  float m = -1e30f, l = 0, acc = 0;
  for (int i = 0; i < tiles; i++) {
    int s = i & 1;
    wait(&full[s], i / 2 & 1);
    for (int r = warp; r < R; r += 2) {
      float dot = q[seq * D + lane] * rows[s][r][lane];
      for (int o = 16; o; o >>= 1) dot += __shfl_xor_sync(~0u, dot, o);
      if (lane == 0) score[r] = dot;
    }
    __syncthreads(); // scores
    if (warp == 0)
      for (int r = 0; r < R; r++) {
        float next = fmaxf(m, score[r]), scale = exp2f(m - next), p = exp2f(score[r] - next);
        acc = acc * scale + p * rows[s][r][lane]; l = l * scale + p; m = next;
      }
    __syncthreads(); // used
    if (t == 0 && i + 2 < tiles) { expect(&full[s], sizeof rows[s]); load(rows[s], from + (i + 2) * R * D, sizeof rows[s], &full[s]); }
  }
  float* mine = part + (seq * splits + blockIdx.x) * (D + 2);
  if (warp == 0) {
    mine[lane] = acc;
    if (lane == 0) { mine[D] = m; mine[D + 1] = l; }
    __threadfence(); // told
  }
  __syncthreads(); // all
  if (t == 0) last = atomicAdd(&arrived[seq], 1) == splits - 1;
  __syncthreads(); // known
  if (!last || warp) return;
  __threadfence(); // seen
  float best = -1e30f, sum = 0, out = 0;
  const float* all = part + seq * splits * (D + 2);
  for (int j = 0; j < splits; j++) best = fmaxf(best, all[j * (D + 2) + D]);
  for (int j = 0; j < splits; j++) {
    float scale = exp2f(all[j * (D + 2) + D] - best);
    out += scale * all[j * (D + 2) + lane]; sum += scale * all[j * (D + 2) + D + 1];
  }
  y[seq * D + lane] = out / sum;
  if (lane == 0) arrived[seq] = 0;
}
