// Row softmax over a cluster: partial maxima and sums go to every block by st.async
#include <cuda_runtime.h>
#include <cstdint>
#include <cfloat>
#include <cstdio>

constexpr int kCluster = 4;
constexpr int kThreads = 128;

__device__ inline uint32_t smem_addr(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ inline uint32_t cluster_rank() { uint32_t r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ inline uint32_t map_to(uint32_t a, uint32_t cta) {
  uint32_t r;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(cta));
  return r;
}
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ inline void st_async(float v, uint32_t dst, uint32_t bar) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" :: "r"(dst), "f"(v), "r"(bar) : "memory");
}
__device__ inline void wait_parity(uint64_t* bar, int parity) {
  asm volatile(
    "{\n.reg .pred p;\nWAIT_LOOP:\n"
    "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
    "@!p bra WAIT_LOOP;\n}" :: "r"(smem_addr(bar)), "r"(parity) : "memory");
}
template <typename F>
__device__ float warp_reduce(float v, F f) {
  for (int d = 16; d > 0; d >>= 1) v = f(v, __shfl_xor_sync(0xffffffffu, v, d));
  return v;
}

__global__ void __launch_bounds__(kThreads) cluster_softmax(float* __restrict__ y, const float* __restrict__ x, int cols)
{
  __shared__ float warp_part[2][kThreads / 32];
  __shared__ __align__(16) float part[2][kCluster];
  __shared__ __align__(8) uint64_t bar[2];
  const int row = blockIdx.x / kCluster;
  const uint32_t rank = cluster_rank();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float* in = x + (size_t)row * cols;
  float* out = y + (size_t)row * cols;

  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(smem_addr(&bar[i])));
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(smem_addr(&bar[i])), "r"((uint32_t)(kCluster * sizeof(float))) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster_arrive();
  cluster_wait();

  float most = -FLT_MAX;
  for (int c = rank * kThreads + threadIdx.x; c < cols; c += kCluster * kThreads) most = fmaxf(most, in[c]);
  most = warp_reduce(most, [](float a, float b) { return fmaxf(a, b); });
  if (lane == 0) warp_part[0][warp] = most;
  __syncthreads();
  if (threadIdx.x < kCluster) {
    float m = warp_part[0][0];
    for (int i = 1; i < kThreads / 32; ++i) m = fmaxf(m, warp_part[0][i]);
    st_async(m, map_to(smem_addr(&part[0][rank]), threadIdx.x), map_to(smem_addr(&bar[0]), threadIdx.x));
  }
  wait_parity(&bar[0], 0);
  most = part[0][0];
  for (int i = 1; i < kCluster; ++i) most = fmaxf(most, part[0][i]);

  float sum = 0.f;
  for (int c = rank * kThreads + threadIdx.x; c < cols; c += kCluster * kThreads) sum += __expf(in[c] - most);
  sum = warp_reduce(sum, [](float a, float b) { return a + b; });
  if (lane == 0) warp_part[1][warp] = sum;
  __syncthreads();
  if (threadIdx.x < kCluster) {
    float s = 0.f;
    for (int i = 0; i < kThreads / 32; ++i) s += warp_part[1][i];
    st_async(s, map_to(smem_addr(&part[1][rank]), threadIdx.x), map_to(smem_addr(&bar[1]), threadIdx.x));
  }
  wait_parity(&bar[1], 0);
  sum = 0.f;
  for (int i = 0; i < kCluster; ++i) sum += part[1][i];
  for (int c = rank * kThreads + threadIdx.x; c < cols; c += kCluster * kThreads) out[c] = __expf(in[c] - most) / sum;
  cluster_arrive();
  cluster_wait();
}

int main()
{
  const int rows = 64, cols = 4096;
  float *x, *y;
  cudaMalloc(&x, sizeof(float) * rows * cols);
  cudaMalloc(&y, sizeof(float) * rows * cols);
  cudaLaunchConfig_t cfg{};
  cfg.gridDim = dim3(rows * kCluster);
  cfg.blockDim = dim3(kThreads);
  cudaLaunchAttribute attrs[1];
  attrs[0].id = cudaLaunchAttributeClusterDimension;
  attrs[0].val.clusterDim = {kCluster, 1, 1};
  cfg.attrs = attrs;
  cfg.numAttrs = 1;
  cudaLaunchKernelEx(&cfg, cluster_softmax, y, (const float*)x, cols);
  printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
