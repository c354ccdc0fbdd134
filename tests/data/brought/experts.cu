// Tokens sorted by expert: counts in shared memory, blocks in order by a chain of flags, rows copied by vectors
extern "C" __global__ void k(const int* chosen, const float4* x, float4* y, int* source, int* starts, const int* totals,
                             volatile int* chain, volatile int* turn, int tokens, int experts, int width) {
  __shared__ int counts[16], base[16];
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  if (t < experts) counts[t] = 0;
  __syncthreads(); // zero
  int e = i < tokens ? chosen[i] : -1, rank = 0;
  unsigned peers = __match_any_sync(~0u, e);
  for (int w = 0; w < blockDim.x / 32; w++) {              // warps in order, so that tokens stay in theirs
    if (t / 32 == w && e >= 0) {
      rank = counts[e] + __popc(peers & ((1u << (t & 31)) - 1));
      __syncwarp(__activemask());
      if ((peers & ((1u << (t & 31)) - 1)) == 0) counts[e] += __popc(peers);
    }
    __syncthreads(); // turn
  }
  if (t < 32) {
    if (t == 0 && blockIdx.x) { while (*turn != blockIdx.x); __threadfence(); /* seen */ }
    __syncwarp(); // told
    if (t < experts) {
      int before = blockIdx.x ? chain[(blockIdx.x - 1) * 16 + t] : 0;
      chain[blockIdx.x * 16 + t] = before + counts[t];
      int first = 0;
      for (int j = 0; j < t; j++) first += totals[j];
      base[t] = first + before;
      if (blockIdx.x == 0) starts[t] = first;
    }
    __threadfence(); // stored
    __syncwarp(); // all
    if (t == 0) *turn = blockIdx.x + 1;
  }
  __syncthreads(); // based
  if (e >= 0) {
    int to = base[e] + rank;
    source[to] = i;
    for (int j = 0; j < width; j++) y[to * width + j] = x[i * width + j];
  }
}
