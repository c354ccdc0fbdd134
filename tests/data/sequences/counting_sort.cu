__global__ void zero(int* counts, int k) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < k) counts[i] = 0;
}
__global__ void count(const int* keys, int* counts, int n, int k) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&counts[keys[i] % k], 1);
}
__global__ void prefix(int* counts, int k) {
  extern __shared__ int s[];
  int t = threadIdx.x;
  s[t] = counts[t];
  __syncthreads();
  for (int d = 1; d < k; d <<= 1) {
    int v = t >= d ? s[t - d] : 0;
    __syncthreads();
    s[t] += v;
    __syncthreads();
  }
  counts[t] = s[t] - counts[t];
}
__global__ void place(const int* keys, int* counts, int* sorted, int n, int k) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) sorted[atomicAdd(&counts[keys[i] % k], 1)] = keys[i];
}
void sort(const int* keys, int* sorted, int n) {
  const int k = 256;
  int* counts;
  cudaMalloc(&counts, k * sizeof(int));
  zero<<<1, k>>>(counts, k);
  count<<<(n + 255) / 256, 256>>>(keys, counts, n, k);
  prefix<<<1, k, k * sizeof(int)>>>(counts, k);
  place<<<(n + 255) / 256, 256>>>(keys, counts, sorted, n, k);
}
int main() {
  int n = 10000;
  int *d_keys, *d_sorted;
  cudaMalloc(&d_keys, n * sizeof(int));
  cudaMalloc(&d_sorted, n * sizeof(int));
  cudaMemcpy(d_keys, keys.data(), n * sizeof(int), cudaMemcpyHostToDevice);
  sort(d_keys, d_sorted, n);
}
