// Matrix of CSR times a vector, its entries and rows split evenly as a merge
static __device__ unsigned arrived;
static __device__ void cooperative(int) {
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned seen;
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(&arrived) : "memory");
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(&arrived) : "memory");
    while (seen < gridDim.x);
  }
  __syncthreads();
}
extern "C" __global__ void k(const int* ends, const int* cols, const float* values, const float* x, float* y,
               int rows, int entries, int each, int* carry_row, float* carry) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  int diagonal = min(i * each, rows + entries), end = min(diagonal + each, rows + entries);
  auto split = [&](int d, int& row, int& entry) {
    int low = max(d - entries, 0), high = min(d, rows);
    while (low < high) {
      int middle = (low + high) / 2;
      if (ends[middle] <= d - middle - 1) low = middle + 1; else high = middle;
    }
    row = low; entry = d - low;
  };
  int row, entry, last_row, last;
  split(diagonal, row, entry);
  split(end, last_row, last);
  float s = 0;
  for (; row < last_row; row++) {
    for (; entry < ends[row]; entry++) s += values[entry] * x[cols[entry]];
    y[row] = s;
    s = 0;
  }
  for (; entry < last; entry++) s += values[entry] * x[cols[entry]];
  carry_row[i] = last_row; carry[i] = s;
  cooperative(threads);
  if (i == 0)
    for (int j = 0; j < threads; j++) if (carry_row[j] < rows) y[carry_row[j]] += carry[j];
}
