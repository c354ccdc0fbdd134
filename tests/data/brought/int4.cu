// A vector by a matrix of 4 bits, eight of a word, with a scale and a zero for each group of 32 along k
extern "C" __global__ void k(const unsigned* q, const float* scales, const unsigned char* zeros, const float* x, float* y,
                             int n, int words) {
  extern __shared__ float xs[];
  int lane = threadIdx.x & 31, w = threadIdx.x >> 5, row = blockIdx.x * 4 + w, groups = words / 4;
  for (int j = threadIdx.x; j < words * 8; j += blockDim.x) xs[j] = x[j];
  __syncthreads();
  if (row >= n) return;
  float s = 0;
  for (int j = lane; j < words; j += 32) {
    unsigned word = q[row * words + j];
    int g = j / 4, zero = zeros[row * ((groups + 1) / 2) + g / 2] >> (g & 1) * 4 & 15;
    float part = 0;
    #pragma unroll
    for (int e = 0; e < 8; e++) part += (float)((int)(word >> 4 * e & 15) - zero) * xs[j * 8 + e];
    s += part * scales[row * groups + g];
  }
  for (int d = 16; d; d >>= 1) s += __shfl_down_sync(~0u, s, d);
  if (lane == 0) y[row] = s;
}
