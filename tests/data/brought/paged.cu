// Decoding with a paged cache: the query is rotated, each warp takes blocks of keys in turns, then the warps merge
extern "C" __global__ void k(const float* q, const float* keys, const float* values, const int* table, const int* lengths,
                             const float* cosines, float* out, int heads, int pages) {
  __shared__ float qs[32], ms[4], ls[4], parts[4][32];
  int lane = threadIdx.x & 31, w = threadIdx.x >> 5, head = blockIdx.x, seq = blockIdx.y, n = lengths[seq];
  if (w == 0) {
    float v = q[(seq * heads + head) * 32 + lane], o = __shfl_xor_sync(~0u, v, 16);
    float c = cosines[(n - 1) * 32 + (lane & 15)], s = cosines[(n - 1) * 32 + 16 + (lane & 15)];
    qs[lane] = lane < 16 ? v * c - o * s : v * c + o * s;
  }
  __syncthreads(); // rotated
  float m = -1e30f, l = 0, acc = 0;
  for (int b = w; b * 8 < n; b += 4) {
    int page = table[seq * pages + b];
    for (int j = 0; j < 8 && b * 8 + j < n; j++) {
      long long at = ((long long)(page * 8 + j) * heads + head) * 32 + lane;
      float s = qs[lane] * keys[at];
      for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
      float now = fmaxf(m, s), old = exp2f(m - now), p = exp2f(s - now);
      acc = acc * old + p * values[at]; l = l * old + p; m = now;
    }
  }
  parts[w][lane] = acc;
  if (lane == 0) { ms[w] = m; ls[w] = l; }
  __syncthreads(); // merged
  if (w == 0) {
    float all = fmaxf(fmaxf(ms[0], ms[1]), fmaxf(ms[2], ms[3])), sum = 0, o = 0;
    for (int j = 0; j < 4; j++) { float f = exp2f(ms[j] - all); sum += ls[j] * f; o += parts[j][lane] * f; }
    out[(seq * heads + head) * 32 + lane] = o / sum;
  }
}
