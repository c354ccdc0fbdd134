// A sparse product by rows: eight lanes a row, x in shared memory as far as it fits, a ragged last warp
extern "C" __global__ void k(const int* rows, const int* columns, const float* values, const float* x, float* y,
                             int m, int n) {
  __shared__ float near[96];
  int t = threadIdx.x, lane = t & 7, row = (blockIdx.x * blockDim.x + t) >> 3;
  for (int j = t; j < min(n, 96); j += blockDim.x) near[j] = x[j];
  __syncthreads();
  float s = 0;
  if (row < m) {
    int end = rows[row + 1];
    for (int e = rows[row] + lane; e < end; e += 8) {
      int c = columns[e];
      s += values[e] * (c < 96 ? near[c] : x[c]);
    }
  }
  for (int d = 4; d; d >>= 1) s += __shfl_down_sync(~0u, s, d, 8);
  if (lane == 0 && row < m) y[row] = s;
}
