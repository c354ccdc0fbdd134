// The largest eight of each row: each warp keeps them sorted in its lanes, the block merges in shared memory
extern "C" __global__ void k(const float* x, float* best, int* places, int rows, int n) {
  __shared__ float values[4][8]; __shared__ int where[4][8];
  int lane = threadIdx.x & 31, w = threadIdx.x >> 5, row = blockIdx.x;
  float v = -3e38f; int p = -1;                          // lane j < 8: the j-th largest so far
  auto put = [&](float mine, int at) {
    unsigned want = __ballot_sync(~0u, mine > __shfl_sync(~0u, v, 7));
    while (want) {
      int from = __ffs(want) - 1;
      float y = __shfl_sync(~0u, mine, from); int q = __shfl_sync(~0u, at, from);
      want &= want - 1;
      float before = __shfl_up_sync(~0u, v, 1); int old = __shfl_up_sync(~0u, p, 1);
      bool moves = y > v, first = lane == 0 || y <= before;
      if (moves) { v = first ? y : before; p = first ? q : old; }
    }
  };
  for (int j = w * 32; j < n; j += 128) {
    int at = j + lane;
    put(at < n ? x[row * n + at] : -3e38f, at);
  }
  if (lane < 8) { values[w][lane] = v; where[w][lane] = p; }
  __syncthreads();
  if (w) return;
  v = -3e38f; p = -1;
  put(values[lane >> 3][lane & 7], where[lane >> 3][lane & 7]);
  if (lane < 8) { best[row * 8 + lane] = v; places[row * 8 + lane] = p; }
}
