// A hash table with linear probing: keys by compare-and-swap, values added up; then it is read by the last block
extern "C" __global__ void k(const unsigned* keys, const int* values, unsigned* slots, int* sums, unsigned* done,
                             int* found, int n, int room) {
  __shared__ bool last;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    unsigned key = keys[i], at = key * 2654435761u % room;
    while (true) {
      unsigned old = atomicCAS(&slots[at], 0u, key);
      if (old == 0 || old == key) break;
      at = at + 1 == room ? 0 : at + 1;
    }
    atomicAdd(&sums[at], values[i]);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(done, 1) == gridDim.x - 1;
  __syncthreads(); // last
  if (!last) return;
  __threadfence();
  for (int j = threadIdx.x; j < room; j += blockDim.x)
    if (slots[j]) found[slots[j]] = sums[j];
  if (threadIdx.x == 0) *done = 0;
}
