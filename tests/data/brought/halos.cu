// A stencil whose line lies in a cluster: halos go to the neighbours by st.async, step by step
#include "units.cuh"
DEV void send(u32 to, float v, u32 b) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" :: "r"(to), "f"(v), "r"(b) : "memory"); }
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const float* x, float* y, int steps) {
  constexpr int N = 64;
  __shared__ float u[2][N], halo[2][2];
  __shared__ u64 full[2];
  int t = threadIdx.x, me = rank(), left = (me + 3) % 4, right = (me + 1) % 4;
  if (t == 0) { init(&full[0], 1); init(&full[1], 1); fence_init(); }
  u[0][t] = x[blockIdx.x * N + t];
  cluster_sync(); // begun
  for (int i = 0; i < steps; i++) {
    int s = i & 1;
    if (t == 0) {
      expect(&full[s], 8);
      send(far(&halo[s][1], left), u[s][0], far(&full[s], left));
      send(far(&halo[s][0], right), u[s][N - 1], far(&full[s], right));
    }
    wait_cluster(&full[s], i / 2 & 1);
    float l = t ? u[s][t - 1] : halo[s][0], r = t < N - 1 ? u[s][t + 1] : halo[s][1];
    u[s ^ 1][t] = l + r - u[s][t];
    __syncthreads(); // stepped
  }
  y[blockIdx.x * N + t] = u[steps & 1][t];
  cluster_sync(); // end
}
