__global__ void first_pass(const float* x, float* best, int* where, int n) {
  __shared__ float v[256];
  __shared__ int at[256];
  int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;
  v[t] = i < n ? x[i] : -1e30f;
  at[t] = i < n ? i : -1;
  __syncthreads();
  for (int s = 128; s > 0; s >>= 1) {
    if (t < s && v[t + s] > v[t]) {
      v[t] = v[t + s];
      at[t] = at[t + s];
    }
    __syncthreads();
  }
  if (t == 0) {
    best[blockIdx.x] = v[0];
    where[blockIdx.x] = at[0];
  }
}
__global__ void second_pass(const float* x, const float* best, const int* where, float* out, int blocks) {
  int at = where[0];
  float v = best[0];
  for (int b = 1; b < blocks; b++)
    if (best[b] > v) {
      v = best[b];
      at = where[b];
    }
  out[0] = v;
  out[1] = x[at];
}
int main() {
  int n = 1 << 16;
  int blocks = (n + 255) / 256;
  float *x, *best, *out;
  int* where;
  cudaMalloc(&x, n * sizeof(float));
  cudaMalloc(&best, blocks * sizeof(float));
  cudaMalloc(&where, blocks * sizeof(int));
  cudaMalloc(&out, 2 * sizeof(float));
  cudaMemcpy(x, h, n * sizeof(float), cudaMemcpyHostToDevice);
  first_pass<<<blocks, 256>>>(x, best, where, n);
  second_pass<<<1, 1>>>(x, best, where, out, blocks);
}
