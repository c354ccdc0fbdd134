// Sums of blocks, which the last one adds up
extern "C" __global__ void k(const float* x, float* parts, float* y, unsigned* count, int n) {
  __shared__ float warp[4];
  __shared__ bool last;
  int t = threadIdx.x;
  float s = 0;
  for (int i = blockIdx.x * 128 + t; i < n; i += gridDim.x * 128) s += x[i];
  auto all = [&](float v) {
    for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
    if (t % 32 == 0) warp[t / 32] = v;
    __syncthreads();
    return warp[0] + warp[1] + warp[2] + warp[3];
  };
  s = all(s);
  if (t == 0) {
    parts[blockIdx.x] = s;
    __threadfence();
    last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last) {
    s = all(t < gridDim.x ? parts[t] : 0.f);
    if (t == 0) *y = s;
  }
}
