// A scan in one pass: each tile looks back over the sums of those before it, a warp's window at a time
struct Tile { volatile int flag, sum, whole, pad; };
extern "C" __global__ void k(const int* x, int* y, Tile* tiles, unsigned* next, int n) {
  __shared__ int warps[4], before; __shared__ unsigned mine;
  int t = threadIdx.x, lane = t & 31, w = t >> 5;
  if (t == 0) mine = atomicAdd(next, 1);
  __syncthreads();
  int tile = mine, i = tile * 128 + t, v = i < n ? x[i] : 0, s = v;
  for (int d = 1; d < 32; d <<= 1) { int o = __shfl_up_sync(~0u, s, d); if (lane >= d) s += o; }
  if (lane == 31) warps[w] = s;
  __syncthreads();
  for (int j = 0; j < w; j++) s += warps[j];
  if (w == 3) {
    int total = __shfl_sync(~0u, s, 31);
    if (lane == 0) {
      if (tile == 0) { tiles[0].whole = total; __threadfence(); /* first */ tiles[0].flag = 2; }
      else { tiles[tile].sum = total; __threadfence(); /* part */ tiles[tile].flag = 1; }
    }
    int sum = 0;
    for (int at = tile - 1; tile; at -= 32) {
      int j = at - lane, f = 2, part = 0;
      if (j >= 0) {
        while ((f = tiles[j].flag) == 0);
        __threadfence(); // seen
        part = f == 2 ? tiles[j].whole : tiles[j].sum;
      }
      unsigned done = __ballot_sync(~0u, f == 2);
      int last = done ? __ffs(done) - 1 : 31;
      if (lane > last) part = 0;
      for (int d = 16; d; d >>= 1) part += __shfl_down_sync(~0u, part, d);
      sum += __shfl_sync(~0u, part, 0);
      if (done) break;
    }
    if (lane == 0) {
      if (tile) { tiles[tile].whole = sum + total; __threadfence(); /* all */ tiles[tile].flag = 2; }
      before = sum;
    }
  }
  __syncthreads(); // told
  if (i < n) y[i] = s + before;
}
