__global__ void assign(const float* points, const float* centres, int* label, int n, int k) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int best = 0;
  float least = 1e30f;
  for (int c = 0; c < k; c++) {
    float d = points[i] - centres[c];
    if (d * d < least) {
      least = d * d;
      best = c;
    }
  }
  label[i] = best;
}
__global__ void accumulate(const float* points, const int* label, float* sums, int* counts, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  atomicAdd(&sums[label[i]], points[i]);
  atomicAdd(&counts[label[i]], 1);
}
__global__ void update(float* centres, const float* sums, const int* counts, int k) {
  int c = threadIdx.x;
  if (c < k && counts[c] > 0) centres[c] = sums[c] / counts[c];
}
void cluster(const float* h_points, int n, int k, int rounds) {
  float *points, *centres, *sums;
  int *label, *counts;
  cudaMalloc(&points, n * sizeof(float));
  cudaMalloc(&centres, k * sizeof(float));
  cudaMalloc(&sums, k * sizeof(float));
  cudaMalloc(&counts, k * sizeof(int));
  cudaMalloc(&label, n * sizeof(int));
  cudaMemcpy(points, h_points, n * sizeof(float), cudaMemcpyHostToDevice);
  cudaMemcpy(centres, h_points, k * sizeof(float), cudaMemcpyHostToDevice);
  for (int r = 0; r < rounds; r++) {
    cudaMemset(sums, 0, k * sizeof(float));
    cudaMemset(counts, 0, k * sizeof(int));
    assign<<<(n + 255) / 256, 256>>>(points, centres, label, n, k);
    accumulate<<<(n + 255) / 256, 256>>>(points, label, sums, counts, n);
    update<<<1, 1024>>>(centres, sums, counts, k);
  }
}
