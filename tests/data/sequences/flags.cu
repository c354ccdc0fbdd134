__global__ void reset(int* ready, int* ticket, int tiles) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < tiles) ready[i] = -1;
  if (i == 0) *ticket = 0;
}
__global__ void chained(const int* in, int* out, volatile int* ready, int* ticket, int n) {
  __shared__ int tile, before;
  __shared__ int s[128];
  int t = threadIdx.x;
  if (t == 0) tile = atomicAdd(ticket, 1);
  __syncthreads();
  int i = tile * 128 + t;
  int own = i < n ? in[i] & 1 : 0;
  s[t] = own;
  __syncthreads();
  for (int d = 1; d < 128; d *= 2) {
    int v = t >= d ? s[t - d] : 0;
    __syncthreads();
    s[t] += v;
    __syncthreads();
  }
  if (t == 0) {
    before = 0;
    if (tile > 0) {
      int v;
      while ((v = ready[tile - 1]) < 0) { }
      before = v;
    }
    __threadfence();
    ready[tile] = before + s[127];
  }
  __syncthreads();
  if (i < n) out[i] = before + s[t];
}
void scan(const int* in, int* out, int n) {
  int tiles = (n + 127) / 128;
  int *ready, *ticket;
  cudaMalloc(&ready, tiles * sizeof(int));
  cudaMalloc(&ticket, sizeof(int));
  reset<<<(tiles + 127) / 128, 128>>>(ready, ticket, tiles);
  chained<<<tiles, 128>>>(in, out, ready, ticket, n);
}
