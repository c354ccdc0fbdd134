__global__ void iota(int* order, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) order[i] = (i * 7) % n;
}
__global__ void inverse(const int* order, int* back, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) back[order[i]] = i;
}
__global__ void gather(const float* x, const int* back, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[back[i]];
}
int main() {
  int n = 1000;
  int *order, *back;
  float *x, *y;
  cudaMalloc(&order, n * sizeof(int));
  cudaMalloc(&back, n * sizeof(int));
  cudaMalloc(&x, n * sizeof(float));
  cudaMalloc(&y, n * sizeof(float));
  iota<<<(n + 127) / 128, 128>>>(order, n);
  inverse<<<(n + 127) / 128, 128>>>(order, back, n);
  gather<<<(n + 127) / 128, 128>>>(x, back, y, n);
}
