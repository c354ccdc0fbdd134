// One pass of a radix sort: ranks by match_any, digits' offsets by a scan, tiles by look-back
extern "C" __global__ void k(const unsigned* in, unsigned* out, unsigned* status, unsigned* ticket, int n, int shift) {
  constexpr int R = 16, W = 4;                       // digits, warps
  __shared__ unsigned counts[W][R], base[R], tile, all[R];
  int t = threadIdx.x, w = t / 32, lane = t % 32;
  if (t == 0) tile = atomicAdd(ticket, 1);
  for (int i = t; i < W * R; i += 128) counts[i / R][i % R] = 0;
  if (t < R) all[t] = 0;
  __syncthreads();
  // The histogram of the whole input, by every block (it is small)
  for (int i = t; i < n; i += 128) atomicAdd(&all[in[i] >> shift & 15], 1);
  int at = tile * 128 + t;
  unsigned key = at < n ? in[at] : 0xffffffffu, digit = at < n ? key >> shift & 15 : 99;
  unsigned same = __match_any_sync(~0u, digit), before = same & ((1u << lane) - 1);
  if (at < n && !before) counts[w][digit] = __popc(same);
  __syncthreads();
  if (t < R) {
    unsigned mine = 0;
    for (int j = 0; j < W; j++) { unsigned c = counts[j][t]; counts[j][t] = mine; mine += c; }
    volatile unsigned* s = status;
    unsigned sum = 0;
    if (tile > 0) {
      s[tile * R + t] = 1u << 30 | mine;             // an aggregate
      for (int b = tile - 1; b >= 0; b--) {
        unsigned v;
        do v = s[b * R + t]; while (v >> 30 == 0);
        sum += v & 0x3fffffff;
        if (v >> 30 == 2) break;
      }
    }
    s[tile * R + t] = 2u << 30 | (sum + mine);
    unsigned first = all[t];
    for (int d = 1; d < R; d *= 2) {
      unsigned o = __shfl_up_sync(0xffff, first, d);
      if (t >= d) first += o;
    }
    base[t] = first - all[t] + sum;
  }
  __syncthreads();
  if (at < n) out[base[digit] + counts[w][digit] + __popc(before)] = key;
}
