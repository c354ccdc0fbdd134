#define SIDE 8
#define CELLS (SIDE * SIDE)
__global__ void hash(const float2* position, int* cell, int* index, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int x = min(max((int)floorf(position[i].x * 2.0f) + SIDE / 2, 0), SIDE - 1);
  int y = min(max((int)floorf(position[i].y * 2.0f) + SIDE / 2, 0), SIDE - 1);
  cell[i] = y * SIDE + x;
  index[i] = i;
}
__global__ void find_cells(const int* cell, const int* index, int* start, int* end, const float2* position,
                           float2* ordered, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int c = cell[i];
  if (i == 0 || cell[i - 1] != c) start[c] = i;
  if (i == n - 1 || cell[i + 1] != c) end[c] = i + 1;
  ordered[i] = position[index[i]];
}
__global__ void density(const float2* ordered, const int* cell, const int* start, const int* end, float* rho,
                        int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float sum = 0.0f;
  int c = cell[i];
  for (int j = start[c]; j < end[c]; j++) {
    float dx = ordered[i].x - ordered[j].x, dy = ordered[i].y - ordered[j].y;
    sum += expf(-dx * dx - dy * dy);
  }
  rho[i] = sum;
}
void step(float2* position, int n) {
  int *cell, *index, *start, *end;
  float2* ordered;
  float* rho;
  cudaMalloc(&cell, n * sizeof(int));
  cudaMalloc(&index, n * sizeof(int));
  cudaMalloc(&start, CELLS * sizeof(int));
  cudaMalloc(&end, CELLS * sizeof(int));
  cudaMalloc(&ordered, n * sizeof(float2));
  cudaMalloc(&rho, n * sizeof(float));
  int blocks = (n + 127) / 128;
  hash<<<blocks, 128>>>(position, cell, index, n);
  thrust::sort_by_key(thrust::device_ptr<int>(cell), thrust::device_ptr<int>(cell + n),
                      thrust::device_ptr<int>(index));
  cudaMemset(start, 0xff, CELLS * sizeof(int));
  find_cells<<<blocks, 128>>>(cell, index, start, end, position, ordered, n);
  density<<<blocks, 128>>>(ordered, cell, start, end, rho, n);
}
