__global__ void row_max(const float* x, float* most, int rows, int cols) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  float m = -1e30f;
  for (int c = 0; c < cols; c++) m = fmaxf(m, x[r * cols + c]);
  most[r] = m;
}
__global__ void row_sum(const float* x, const float* most, float* sum, int rows, int cols) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  float s = 0.0f;
  for (int c = 0; c < cols; c++) s += expf(x[r * cols + c] - most[r]);
  sum[r] = s;
}
__global__ void divide(const float* x, const float* most, const float* sum, float* y, int rows, int cols) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows * cols) y[i] = expf(x[i] - most[i / cols]) / sum[i / cols];
}
void softmax(const float* x, float* y, int rows, int cols) {
  float *most, *sum;
  cudaMalloc(&most, rows * sizeof(float));
  cudaMalloc(&sum, rows * sizeof(float));
  row_max<<<(rows + 127) / 128, 128>>>(x, most, rows, cols);
  row_sum<<<(rows + 127) / 128, 128>>>(x, most, sum, rows, cols);
  divide<<<(rows * cols + 255) / 256, 256>>>(x, most, sum, y, rows, cols);
}
