// Ring of blocks that pass tiles on by st.async, each with a full and a remote empty mbarrier
#include "styles.cuh"
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const float* x, float* y, int rounds) {
  __shared__ alignas(16) float box[2][128];
  __shared__ alignas(8) u64 full[2], empty[2];
  int t = threadIdx.x, me = rank(), next = (me + 1) & 3, before = (me + 3) & 3;
  if (t == 0) {
    for (int s = 0; s < 2; s++) { init(&full[s], 1); init(&empty[s], 32); }
    fence_init();
    for (int s = 0; s < 2; s++) if (s < rounds) expect(&full[s], 512);
  }
  cluster_sync();
  float4 v = ((const float4*)x)[blockIdx.x * 32 + t], sum = v;
  for (int i = 0; i < rounds; i++) {
    int s = i & 1, parity = i >> 1 & 1;
    wait_cluster(&empty[s], parity ^ 1);
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
      :: "r"(far(&box[s][4 * t], next)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(far(&full[s], next)) : "memory");
    wait_cluster(&full[s], parity);
    v = *(float4*)&box[s][4 * t];
    sum.x += v.x; sum.y += v.y; sum.z += v.z; sum.w += v.w;
    if (t == 0 && i + 2 < rounds) expect(&full[s], 512);
    __syncwarp();
    if (i + 2 < rounds) arrive_far(far(&empty[s], before));
  }
  ((float4*)y)[blockIdx.x * 32 + t] = sum;
  cluster_sync();
}
