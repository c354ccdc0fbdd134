#define BINS 256
__global__ void histogram(const unsigned char* image, unsigned int* bins, int size) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) atomicAdd(&bins[image[i]], 1u);
}
__global__ void cumulate(const unsigned int* bins, unsigned char* map, int size) {
  __shared__ unsigned int sums[BINS];
  int t = threadIdx.x;
  sums[t] = bins[t];
  __syncthreads();
  for (int d = 1; d < BINS; d *= 2) {
    unsigned int v = t >= d ? sums[t - d] : 0;
    __syncthreads();
    sums[t] += v;
    __syncthreads();
  }
  map[t] = (unsigned char)(sums[t] * 255u / size);
}
__global__ void apply(unsigned char* image, const unsigned char* map, int size) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) image[i] = map[image[i]];
}
void equalise(unsigned char* h_image, int width, int height) {
  unsigned char *d_image, *d_map;
  unsigned int* d_bins;
  int size = width * height;
  cudaMalloc(&d_image, size);
  cudaMalloc(&d_map, BINS);
  cudaMalloc(&d_bins, BINS * sizeof(unsigned int));
  cudaMemcpy(d_image, h_image, size, cudaMemcpyHostToDevice);
  cudaMemset(d_bins, 0, BINS * sizeof(unsigned int));
  histogram<<<(size + 255) / 256, 256>>>(d_image, d_bins, size);
  cumulate<<<1, BINS>>>(d_bins, d_map, size);
  apply<<<(size + 255) / 256, 256>>>(d_image, d_map, size);
}
