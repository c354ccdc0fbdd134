// The backward pass of a layer norm: dx by rows, dgamma by blocks, added up by the last block
extern "C" __global__ void k(const float* x, const float* dy, const float* gamma, const float* stats, float* dx,
                             float* parts, float* dgamma, unsigned* count, int rows, int n) {
  extern __shared__ float mine[];                          // n sums, then what warps have
  float* warps = mine + n;
  __shared__ bool last;
  int t = threadIdx.x, lane = t & 31, w = t >> 5;
  for (int j = t; j < n; j += blockDim.x) mine[j] = 0;
  for (int r = blockIdx.x; r < rows; r += gridDim.x) {
    float mean = stats[2 * r], inv = stats[2 * r + 1], a = 0, b = 0;
    for (int j = t; j < n; j += blockDim.x) {
      float h = (x[r * n + j] - mean) * inv, g = dy[r * n + j] * gamma[j];
      a += g; b += g * h;
      mine[j] += dy[r * n + j] * h;
    }
    for (int d = 16; d; d >>= 1) { a += __shfl_xor_sync(~0u, a, d); b += __shfl_xor_sync(~0u, b, d); }
    __syncthreads(); // free
    if (lane == 0) { warps[2 * w] = a; warps[2 * w + 1] = b; }
    __syncthreads(); // there
    a = b = 0;
    for (int j = 0; j < blockDim.x / 32; j++) { a += warps[2 * j]; b += warps[2 * j + 1]; }
    for (int j = t; j < n; j += blockDim.x) {
      float h = (x[r * n + j] - mean) * inv, g = dy[r * n + j] * gamma[j];
      dx[r * n + j] = inv * (g - a / n - h * b / n);
    }
  }
  for (int j = t; j < n; j += blockDim.x) parts[blockIdx.x * n + j] = mine[j];
  __threadfence(); // stored
  __syncthreads(); // all
  if (t == 0) last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads(); // last
  if (!last) return;
  __threadfence(); // seen
  for (int j = t; j < n; j += blockDim.x) {
    float s = 0;
    for (int p = 0; p < gridDim.x; p++) s += parts[p * n + j];
    dgamma[j] = s;
  }
}
