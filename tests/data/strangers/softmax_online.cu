// One warp a row, online maximum
__global__ void softmax_online(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += (size_t)row * cols; y += (size_t)row * cols;
  float m = -INFINITY, s = 0.f;
  for (int c = lane; c < cols; c += 32) {
    float v = x[c];
    if (v > m) { s = s * __expf(m - v) + 1.f; m = v; } else s += __expf(v - m);
  }
#pragma unroll
  for (int d = 16; d; d /= 2) {
    float m2 = __shfl_xor_sync(0xffffffff, m, d), s2 = __shfl_xor_sync(0xffffffff, s, d);
    float top = fmaxf(m, m2);
    s = (m == top ? s : s * __expf(m - top)) + (m2 == top ? s2 : s2 * __expf(m2 - top));
    m = top;
  }
  for (int c = lane; c < cols; c += 32) y[c] = __expf(x[c] - m) / s;
}
