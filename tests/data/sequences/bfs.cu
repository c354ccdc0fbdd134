__global__ void init(int* distance, int* queue, int* size, int n, int source) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) distance[i] = i == source ? 0 : -1;
  if (i == 0) {
    queue[0] = source;
    size[0] = 1;
    size[1] = 0;
  }
}
__global__ void expand(const int* starts, const int* edges, int* distance, const int* queue, int* next, int* size,
                       int level, int from) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size[from]) return;
  int u = queue[i];
  for (int k = starts[u]; k < starts[u + 1]; k++)
    if (atomicCAS(&distance[edges[k]], -1, level + 1) == -1) next[atomicAdd(&size[1 - from], 1)] = edges[k];
}
void bfs(const int* starts, const int* edges, int n, int source) {
  int *distance, *queue, *next, *size;
  cudaMalloc(&distance, n * sizeof(int));
  cudaMalloc(&queue, n * sizeof(int));
  cudaMalloc(&next, n * sizeof(int));
  cudaMalloc(&size, 2 * sizeof(int));
  init<<<(n + 255) / 256, 256>>>(distance, queue, size, n, source);
  int count = 1, level = 0;
  while (count > 0) {
    expand<<<(n + 255) / 256, 256>>>(starts, edges, distance, queue, next, size, level, 0);
    cudaMemcpy(&count, size + 1, sizeof(int), cudaMemcpyDeviceToHost);
    std::swap(queue, next);
    level++;
  }
}
