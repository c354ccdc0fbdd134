__global__ void degrees(const int* from, int* degree, int m) {
  int e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e < m) atomicAdd(degree + from[e], 1);
}
__global__ void scan(int* degree, int* offset, int n) {
  if (threadIdx.x == 0) {
    offset[0] = 0;
    for (int v = 0; v < n; v++) offset[v + 1] = offset[v] + degree[v];
  }
}
__global__ void triangles(const int* offset, const int* degree, const int* from, int* total, int m) {
  int e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e >= m) return;
  int found = 0;
  for (int k = offset[from[e]]; k < offset[from[e]] + degree[from[e]]; k++) found += from[k] > 0;
  atomicAdd(total, found);
}
struct Graph {
  int n, m;
  int *from, *degree, *offset, *total;
  void build() {
    cudaMalloc(&from, m * sizeof(int));
    cudaMalloc(&degree, n * sizeof(int));
    cudaMalloc(&offset, (n + 1) * sizeof(int));
    cudaMalloc(&total, sizeof(int));
    cudaMemcpy(from, h_from, m * sizeof(int), cudaMemcpyHostToDevice);
    cudaMemset(degree, 0, n * sizeof(int));
    cudaMemset(total, 0, sizeof(int));
    degrees<<<(m + 255) / 256, 256>>>(from, degree, m);
    scan<<<1, 32>>>(degree, offset, n);
    triangles<<<(m + 255) / 256, 256>>>(offset, degree, from, total, m);
  }
};
