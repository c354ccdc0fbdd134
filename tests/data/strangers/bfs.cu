// One level of a breadth-first search; the queue of a block goes to global memory at once
struct Graph { const int* offsets; const int* edges; int nodes; };
__global__ void bfs_level(Graph g, const int* frontier, int frontier_size, int* next, int* next_size, int* dist,
                          int level) {
  __shared__ int queue[1024]; __shared__ int count, base;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t < frontier_size) {
    int u = frontier[t];
    for (int e = g.offsets[u]; e < g.offsets[u + 1]; e++) {
      int v = g.edges[e];
      if (atomicCAS(&dist[v], -1, level) == -1) {
        int at = atomicAdd(&count, 1);
        if (at < 1024) queue[at] = v; else next[atomicAdd(next_size, 1)] = v;
      }
    }
  }
  __syncthreads();
  int have = min(count, 1024);
  if (threadIdx.x == 0) base = atomicAdd(next_size, have);
  __syncthreads();
  for (int i = threadIdx.x; i < have; i += blockDim.x) next[base + i] = queue[i];
}
