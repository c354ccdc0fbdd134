// One pass of a radix sort of 4 bits: ranks within warps by match, digits' offsets by a scan, keys through shared memory
extern "C" __global__ void k(const unsigned* keys, unsigned* out, int* offsets, int shift, int n) {
  __shared__ int counts[4][16], starts[16]; __shared__ unsigned sorted[128];
  int t = threadIdx.x, lane = t & 31, w = t >> 5, first = blockIdx.x * 128;
  int here = min(128, n - first);
  for (int j = t; j < 64; j += 128) counts[j >> 4][j & 15] = 0;
  __syncthreads();
  unsigned key = t < here ? keys[first + t] : ~0u;
  int digit = t < here ? key >> shift & 15 : 15;
  unsigned same = __match_any_sync(~0u, digit);
  int rank = __popc(same & ((1u << lane) - 1));
  if (rank == 0) counts[w][digit] = __popc(same);
  __syncthreads(); // counted
  if (t < 16) {
    int sum = 0;
    for (int j = 0; j < 4; j++) { int c = counts[j][t]; counts[j][t] = sum; sum += c; }
    int s = sum;
    for (int d = 1; d < 16; d <<= 1) { int o = __shfl_up_sync(0xffffu, s, d, 16); if (t >= d) s += o; }
    starts[t] = s - sum;
  }
  __syncthreads(); // scanned
  sorted[starts[digit] + counts[w][digit] + rank] = key;
  __syncthreads(); // gathered
  if (t < here) {
    unsigned mine = sorted[t];
    int d = mine >> shift & 15;
    out[offsets[blockIdx.x * 16 + d] + t - starts[d]] = mine;
  }
}
