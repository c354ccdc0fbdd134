// A sum as SDKs had it: halves with barriers, then a volatile tail of one warp, with what Volta asks for
extern "C" __global__ void k(const int* x, int* partial, int* total, unsigned* count, int n) {
  __shared__ volatile int s[128]; __shared__ bool last;
  int t = threadIdx.x, i = blockIdx.x * 256 + t;
  s[t] = (i < n ? x[i] : 0) + (i + 128 < n ? x[i + 128] : 0);
  __syncthreads(); // loaded
  if (t < 64) s[t] += s[t + 64];
  __syncthreads(); // half
  if (t < 32) {
    int v = s[t] + s[t + 32];
    for (int d = 16; d; d >>= 1) {
      __syncwarp(); // read
      s[t] = v;
      __syncwarp(); // written
      if (t < d) v += s[t + d];
    }
    if (t == 0) {
      partial[blockIdx.x] = v;
      __threadfence(); // stored
      last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
    }
  }
  __syncthreads(); // last
  if (last && t == 0) {
    __threadfence();
    int sum = 0;
    for (int j = 0; j < gridDim.x; j++) sum += partial[j];
    *total = sum;
  }
}
