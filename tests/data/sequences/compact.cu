__global__ void mark(const float* x, int* flags, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) flags[i] = x[i] > 0.0f;
}
__global__ void compact(const float* x, const int* flags, const int* places, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && flags[i]) y[places[i]] = x[i];
}
int main(int argc, char** argv) {
  int n = atoi(argv[1]);
  float *d_x, *d_y;
  int *d_flags, *d_places;
  cudaMalloc((void**)&d_x, n * sizeof(float));
  cudaMalloc((void**)&d_y, n * sizeof(float));
  cudaMalloc((void**)&d_flags, n * sizeof(int));
  cudaMalloc((void**)&d_places, n * sizeof(int));
  cudaMemcpy(d_x, h_x, n * sizeof(float), cudaMemcpyHostToDevice);
  int blocks = (n + 255) / 256;
  mark<<<blocks, 256>>>(d_x, d_flags, n);
  thrust::exclusive_scan(thrust::device, d_flags, d_flags + n, d_places);
  compact<<<blocks, 256>>>(d_x, d_flags, d_places, d_y, n);
  cudaMemcpy(h_y, d_y, n * sizeof(float), cudaMemcpyDeviceToHost);
}
