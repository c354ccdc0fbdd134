// Layer norm of rows that a cluster shares: sums pushed to every block, which count arrivals
#include "styles.cuh"
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const float* x, const float* gamma, float* y, int rows, int n) {
  __shared__ float2 got[2][4];
  __shared__ float2 part[4];
  __shared__ alignas(8) u64 bar[2];
  int t = threadIdx.x, lane = t & 31, me = rank(), share = n / 4;
  if (t < 2) init(&bar[t], 4);
  fence_init();
  cluster_sync();
  int turn = 0;
  for (int r = blockIdx.x / 4; r < rows; r += gridDim.x / 4, turn++) {
    const float* row = x + (long)r * n + me * share;
    float2 s = {0, 0};
    for (int i = t; i < share; i += 128) { float v = row[i]; s.x += v; s.y += v * v; }
    for (int d = 16; d; d >>= 1) { s.x += __shfl_xor_sync(~0u, s.x, d); s.y += __shfl_xor_sync(~0u, s.y, d); }
    if (lane == 0) part[t / 32] = s;
    __syncthreads();
    int b = turn & 1;
    if (t < 4) {
      float2 all = {0, 0};
      for (int w = 0; w < 4; w++) { all.x += part[w].x; all.y += part[w].y; }
      asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" :: "r"(far(&got[b][me], t)), "f"(all.x), "f"(all.y) : "memory");
      arrive_far(far(&bar[b], t));
    }
    wait_cluster(&bar[b], turn >> 1 & 1);
    float2 sum = {0, 0};
    for (int q = 0; q < 4; q++) { sum.x += got[b][q].x; sum.y += got[b][q].y; }
    float mean = sum.x / n, scale = rsqrtf(sum.y / n - mean * mean + 1e-5f);
    for (int i = t; i < share; i += 128) y[(long)r * n + me * share + i] = (row[i] - mean) * scale * gamma[me * share + i];
    __syncthreads();
  }
  cluster_sync();
}
