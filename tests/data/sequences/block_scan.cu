#define THREADS 256
__global__ void scan_blocks(const int* in, int* out, int* sums, int n) {
  __shared__ int s[THREADS];
  int i = blockIdx.x * THREADS + threadIdx.x, t = threadIdx.x;
  int own = i < n ? in[i] : 0;
  s[t] = own;
  __syncthreads();
  for (int d = 1; d < THREADS; d *= 2) {
    int v = t >= d ? s[t - d] : 0;
    __syncthreads();
    s[t] += v;
    __syncthreads();
  }
  if (i < n) out[i] = s[t] - own;
  if (t == THREADS - 1) sums[blockIdx.x] = s[t];
}
__global__ void scan_sums(int* sums, int blocks) {
  int total = 0;
  for (int b = 0; b < blocks; b++) {
    int own = sums[b];
    sums[b] = total;
    total += own;
  }
}
__global__ void add_sums(int* out, const int* sums, int n) {
  int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < n) out[i] += sums[blockIdx.x];
}
__global__ void place(const int* flags, const int* places, int* kept, int n) {
  int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < n && flags[i]) kept[places[i]] = i;
}
__global__ void mark(const float* x, int* flags, int n) {
  int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < n) flags[i] = x[i] < 0 ? 1 : 0;
}
void exclusive_scan(int* d_in, int* d_out, int n) {
  int blocks = (n + THREADS - 1) / THREADS;
  int* d_sums;
  cudaMalloc(&d_sums, blocks * sizeof(int));
  scan_blocks<<<blocks, THREADS>>>(d_in, d_out, d_sums, n);
  scan_sums<<<1, 1>>>(d_sums, blocks);
  add_sums<<<blocks, THREADS>>>(d_out, d_sums, n);
  cudaFree(d_sums);
}
int main() {
  const int N = 4096 * 3 + 7;
  float* x;
  int *flags, *places, *kept;
  cudaMalloc(&x, N * sizeof(float));
  cudaMalloc(&flags, N * sizeof(int));
  cudaMalloc(&places, N * sizeof(int));
  cudaMalloc(&kept, N * sizeof(int));
  mark<<<(N + THREADS - 1) / THREADS, THREADS>>>(x, flags, N);
  exclusive_scan(flags, places, N);
  place<<<(N + THREADS - 1) / THREADS, THREADS>>>(flags, places, kept, N);
}
