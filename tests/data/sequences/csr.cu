__global__ void count_rows(const int* rows, int* counts, int nnz) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < nnz) atomicAdd(&counts[rows[i]], 1);
}
__global__ void row_starts(const int* counts, int* starts, int m) {
  int sum = 0;
  for (int r = 0; r < m; r++) {
    starts[r] = sum;
    sum += counts[r];
  }
  starts[m] = sum;
}
__global__ void fill(const int* rows, const int* cols, const float* values, const int* starts, int* used,
                     int* csr_cols, float* csr_values, int nnz) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= nnz) return;
  int place = starts[rows[i]] + atomicAdd(&used[rows[i]], 1);
  csr_cols[place] = cols[i];
  csr_values[place] = values[i];
}
__global__ void spmv(const int* starts, const int* csr_cols, const float* csr_values, const float* x, float* y,
                     int m) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= m) return;
  float sum = 0;
  for (int k = starts[r]; k < starts[r + 1]; k++) sum += csr_values[k] * x[csr_cols[k]];
  y[r] = sum;
}
void multiply(int m, int nnz) {
  int *rows, *cols, *counts, *starts, *used, *csr_cols;
  float *values, *csr_values, *x, *y;
  cudaMalloc(&rows, nnz * sizeof(int));
  cudaMalloc(&cols, nnz * sizeof(int));
  cudaMalloc(&values, nnz * sizeof(float));
  cudaMalloc(&counts, m * sizeof(int));
  cudaMalloc(&used, m * sizeof(int));
  cudaMalloc(&starts, (m + 1) * sizeof(int));
  cudaMalloc(&csr_cols, nnz * sizeof(int));
  cudaMalloc(&csr_values, nnz * sizeof(float));
  cudaMalloc(&x, m * sizeof(float));
  cudaMalloc(&y, m * sizeof(float));
  cudaMemcpy(rows, h_rows, nnz * sizeof(int), cudaMemcpyHostToDevice);
  cudaMemcpy(cols, h_cols, nnz * sizeof(int), cudaMemcpyHostToDevice);
  cudaMemset(counts, 0, m * sizeof(int));
  cudaMemset(used, 0, m * sizeof(int));
  count_rows<<<(nnz + 127) / 128, 128>>>(rows, counts, nnz);
  row_starts<<<1, 1>>>(counts, starts, m);
  fill<<<(nnz + 127) / 128, 128>>>(rows, cols, values, starts, used, csr_cols, csr_values, nnz);
  spmv<<<(m + 127) / 128, 128>>>(starts, csr_cols, csr_values, x, y, m);
}
