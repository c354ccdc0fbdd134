// Sums of segments of any length: warps reduce by shuffles, what crosses blocks goes by atomics
extern "C" __global__ void k(const int* keys, const float* x, float* sums, int n) {
  __shared__ int last_key[8]; __shared__ float tail[8]; __shared__ int whole[8];
  int t = threadIdx.x, lane = t & 31, w = t >> 5, i = blockIdx.x * blockDim.x + t;
  int key = i < n ? keys[i] : -1;
  float v = i < n ? x[i] : 0;
  for (int d = 1; d < 32; d <<= 1) {
    float o = __shfl_up_sync(~0u, v, d);
    int k = __shfl_up_sync(~0u, key, d);
    if (lane >= d && k == key) v += o;
  }
  int first = __shfl_sync(~0u, key, 0), next = __shfl_down_sync(~0u, key, 1);
  if (lane == 31) { last_key[w] = key; tail[w] = v; whole[w] = first == key; }
  __syncthreads();
  if (first == key)                                      // what the warps before have of this segment
    for (int j = w - 1; j >= 0 && last_key[j] == key; j--) { v += tail[j]; if (!whole[j]) break; }
  bool ends = lane < 31 ? next != key : w == 7 || i + 1 >= n || keys[i + 1] != key;
  if (ends && key >= 0) atomicAdd(&sums[key], v);
}
