// Occurrences of a pattern: the text of a block with its halo in shared memory, ballots as bit sets, one word a warp
extern "C" __global__ void k(const char* text, const char* pattern, unsigned* hits, int* count, int n, int m) {
  __shared__ char s[256 + 32]; __shared__ char p[32]; __shared__ int sum;
  int t = threadIdx.x, i = blockIdx.x * 256 + t;
  if (t < m) p[t] = pattern[t];
  if (t == 0) sum = 0;
  s[t] = i < n ? text[i] : 0;
  if (t < m - 1) s[256 + t] = i + 256 < n ? text[i + 256] : 0;
  __syncthreads(); // loaded
  bool same = i + m <= n;
  for (int j = 0; j < m && same; j++) same = s[t + j] == p[j];
  unsigned word = __ballot_sync(~0u, same);
  if ((t & 31) == 0 && i < n) { hits[i / 32] = word; atomicAdd(&sum, __popc(word)); }
  __syncthreads(); // counted
  if (t == 0 && sum) atomicAdd(count, sum);
}
