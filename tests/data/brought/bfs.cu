// Breadth-first search by one persistent grid: frontiers in turns, a barrier of all blocks between levels
__device__ void meet(unsigned* count, volatile unsigned* turn) {
  __syncthreads(); // before
  if (threadIdx.x == 0) {
    unsigned now = *turn;
    __threadfence();
    if (atomicAdd(count, 1) == gridDim.x - 1) { *count = 0; __threadfence(); /* go */ *turn = now + 1; }
    else while (*turn == now);
    __threadfence(); // gone
  }
  __syncthreads(); // after
}
extern "C" __global__ void k(const int* rows, const int* ends, int* levels, int* queues, int* sizes, unsigned* sync, int n) {
  __shared__ int list[64], length, base;
  int t = threadIdx.x;
  for (int level = 0; ; level++) {
    int* from = queues + (level & 1) * n; int* to = queues + (~level & 1) * n;
    int size = *(volatile int*)&sizes[level % 3];
    if (size == 0) break;
    if (blockIdx.x == 0 && t == 0) sizes[(level + 2) % 3] = 0;
    if (t == 0) length = 0;
    __syncthreads(); // emptied
    for (int i = blockIdx.x * blockDim.x + t; i < size; i += gridDim.x * blockDim.x) {
      int v = from[i];
      for (int e = rows[v]; e < rows[v + 1]; e++)
        if (atomicCAS(&levels[ends[e]], -1, level + 1) == -1) {
          int at = atomicAdd(&length, 1);
          if (at < 64) list[at] = ends[e];
          else to[atomicAdd(&sizes[(level + 1) % 3], 1)] = ends[e];
        }
    }
    __syncthreads(); // listed
    int some = min(length, 64);
    if (t == 0) base = atomicAdd(&sizes[(level + 1) % 3], some);
    __syncthreads(); // placed
    for (int j = t; j < some; j += blockDim.x) to[base + j] = list[j];
    meet(&sync[0], &sync[1]);
  }
}
