// Persistent blocks take tiles from a counter; results of tiles are chained by flags
struct Work { int* next; volatile int* done; int tiles; };
__global__ void persistent(Work work, const float* in, float* carry, float* out) {
  __shared__ int tile; __shared__ float red[128];
  while (true) {
    if (threadIdx.x == 0) tile = atomicAdd(work.next, 1);
    __syncthreads();
    int t = tile;
    if (t >= work.tiles) break;
    red[threadIdx.x] = in[t * 128 + threadIdx.x];
    __syncthreads();
    for (int s = 64; s; s >>= 1) {
      if (threadIdx.x < s) red[threadIdx.x] += red[threadIdx.x + s];
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      float before = 0.f;
      if (t) { while (work.done[t - 1] == 0) ; __threadfence(); before = carry[t - 1]; }
      carry[t] = before + red[0];
      __threadfence();
      work.done[t] = 1;
      red[0] = before;
    }
    __syncthreads();
    out[t * 128 + threadIdx.x] = in[t * 128 + threadIdx.x] + red[0];
    __syncthreads();
  }
}
