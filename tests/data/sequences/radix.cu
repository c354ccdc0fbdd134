#define BITS 4
#define RADIX 16
__global__ void histogram(const unsigned* keys, unsigned* counts, int n, int shift) {
  __shared__ unsigned local[RADIX];
  if (threadIdx.x < RADIX) local[threadIdx.x] = 0;
  __syncthreads();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&local[(keys[i] >> shift) & (RADIX - 1)], 1u);
  __syncthreads();
  if (threadIdx.x < RADIX) counts[threadIdx.x * gridDim.x + blockIdx.x] = local[threadIdx.x];
}
__global__ void scan(unsigned* counts, unsigned* offsets, int total) {
  unsigned sum = 0;
  for (int i = 0; i < total; i++) {
    offsets[i] = sum;
    sum += counts[i];
  }
}
__global__ void scatter(const unsigned* keys, unsigned* out, const unsigned* offsets, int n, int shift) {
  __shared__ unsigned digits[256];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned digit = i < n ? (keys[i] >> shift) & (RADIX - 1) : RADIX;
  digits[threadIdx.x] = digit;
  __syncthreads();
  if (i < n) {
    unsigned rank = 0;
    for (int t = 0; t < threadIdx.x; t++) rank += digits[t] == digit;
    out[offsets[digit * gridDim.x + blockIdx.x] + rank] = keys[i];
  }
}
int main() {
  const int n = 1 << 20, threads = 256, blocks = (n + threads - 1) / threads;
  unsigned *d_in, *d_out, *d_counts, *d_offsets;
  cudaMalloc(&d_in, n * sizeof(unsigned));
  cudaMalloc(&d_out, n * sizeof(unsigned));
  cudaMalloc(&d_counts, RADIX * blocks * sizeof(unsigned));
  cudaMalloc(&d_offsets, RADIX * blocks * sizeof(unsigned));
  cudaMemcpy(d_in, h_in, n * sizeof(unsigned), cudaMemcpyHostToDevice);
  for (int shift = 0; shift < 32; shift += BITS) {
    histogram<<<blocks, threads>>>(d_in, d_counts, n, shift);
    scan<<<1, 1>>>(d_counts, d_offsets, RADIX * blocks);
    scatter<<<blocks, threads>>>(d_in, d_out, d_offsets, n, shift);
    std::swap(d_in, d_out);
  }
  return 0;
}
