// Cluster of 2 along N shares A by multicast; __cluster_dims__; fp16
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <iostream>
#include <vector>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

#define CHECK(x) do { auto e = (x); if (e) { std::cerr << "error " << e << std::endl; exit(1); } } while (0)

static constexpr int BM = 64, BN = 64, BK = 64, STAGES = 4, CLUSTER = 2;
static constexpr int THREADS = 256;

struct alignas(1024) Shared {
  half a[STAGES][BM * BK];
  half b[STAGES][BN * BK];
  uint64_t full[STAGES];
  uint64_t empty[STAGES];
};

__device__ __forceinline__ uint32_t smem_u32(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void mbar_init(uint64_t* b, uint32_t n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_u32(b)), "r"(n));
}
__device__ __forceinline__ void mbar_expect_tx(uint64_t* b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_u32(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool mbar_try(uint64_t* b, uint32_t parity) {
  uint32_t ok;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(ok) : "r"(smem_u32(b)), "r"(parity) : "memory");
  return ok;
}
__device__ __forceinline__ void mbar_wait(uint64_t* b, uint32_t parity) { while (!mbar_try(b, parity)) {} }
__device__ __forceinline__ bool mbar_try_cluster(uint64_t* b, uint32_t parity) {
  uint32_t ok;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(ok) : "r"(smem_u32(b)), "r"(parity) : "memory");
  return ok;
}
__device__ __forceinline__ void mbar_arrive_cluster(uint64_t* b, uint32_t cta) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(smem_u32(b)), "r"(cta));
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}
__device__ __forceinline__ void tma_load(void* dst, const CUtensorMap* map, uint64_t* bar, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
               ::"r"(smem_u32(dst)), "l"(map), "r"(smem_u32(bar)), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void tma_load_multicast(void* dst, const CUtensorMap* map, uint64_t* bar, int x, int y, uint16_t mask) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
               ::"r"(smem_u32(dst)), "l"(map), "r"(smem_u32(bar)), "r"(x), "r"(y), "h"(mask) : "memory");
}
__device__ __forceinline__ uint64_t desc(const half* p) {
  uint64_t d = 0;
  d |= (uint64_t)((smem_u32(p) & 0x3FFFF) >> 4);
  d |= (uint64_t)1 << 16;
  d |= (uint64_t)(1024 >> 4) << 32;
  d |= (uint64_t)1 << 62;
  return d;
}
#define R8(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
__device__ __forceinline__ void mma(float (&c)[32], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
      : R8(0), R8(8), R8(16), R8(24) : "l"(a), "l"(b));
}

__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS)
gemm_cluster(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, half* __restrict__ c_out, int m, int n, int k)
{
  extern __shared__ __align__(1024) unsigned char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  cg::cluster_group cluster = cg::this_cluster();
  const uint32_t rank = cluster.block_rank();
  const int tile_n = blockIdx.x * BN, tile_m = blockIdx.y * BM;
  const int steps = (k + BK - 1) / BK;

  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      mbar_init(&s.full[i], 1);
      mbar_init(&s.empty[i], CLUSTER);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster.sync();

  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) {
      for (int it = 0; it < steps; ++it) {
        const int st = it % STAGES;
        if (it >= STAGES) while (!mbar_try_cluster(&s.empty[st], (it / STAGES - 1) & 1)) {}
        mbar_expect_tx(&s.full[st], sizeof(s.a[0]) + sizeof(s.b[0]));
        // each block loads half of A for both
        tma_load_multicast(s.a[st] + rank * BM / 2 * BK, &map_a, &s.full[st], it * BK, tile_m + rank * BM / 2, 3);
        tma_load(s.b[st], &map_b, &s.full[st], it * BK, tile_n);
      }
    }
  } else {
    float c[32];
    for (int i = 0; i < 32; ++i) c[i] = 0.f;
    for (int it = 0; it < steps; ++it) {
      const int st = it % STAGES;
      mbar_wait(&s.full[st], (it / STAGES) & 1);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      for (int kk = 0; kk < BK; kk += 16) mma(c, desc(s.a[st] + kk), desc(s.b[st] + kk));
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      if (threadIdx.x < CLUSTER) mbar_arrive_cluster(&s.empty[st], threadIdx.x);
    }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int j = 0; j < 8; ++j) {
      const int col = tile_n + j * 8 + (lane % 4) * 2;
      const int row = tile_m + warp * 16 + lane / 4;
      if (col < n) {
        if (row < m) *reinterpret_cast<half2*>(&c_out[(size_t)row * n + col]) = __floats2half2_rn(c[4 * j], c[4 * j + 1]);
        if (row + 8 < m) *reinterpret_cast<half2*>(&c_out[(size_t)(row + 8) * n + col]) = __floats2half2_rn(c[4 * j + 2], c[4 * j + 3]);
      }
    }
  }
  cluster.sync();
}

static CUtensorMap make_map(const half* ptr, int rows, int cols, int box_rows, int box_cols) {
  CUtensorMap map;
  cuuint64_t dims[2] = {(cuuint64_t)cols, (cuuint64_t)rows};
  cuuint64_t strides[1] = {cols * sizeof(half)};
  cuuint32_t box[2] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows};
  cuuint32_t elem[2] = {1, 1};
  CHECK(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, const_cast<half*>(ptr), dims, strides, box, elem,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

int main(int argc, char** argv) {
  const int m = argc > 1 ? atoi(argv[1]) : 1024, n = 1024, k = 512;
  half *a, *b, *c;
  CHECK(cudaMalloc(&a, sizeof(half) * m * k));
  CHECK(cudaMalloc(&b, sizeof(half) * n * k));
  CHECK(cudaMalloc(&c, sizeof(half) * m * n));
  CUtensorMap ta = make_map(a, m, k, BM / CLUSTER, BK);
  CUtensorMap tb = make_map(b, n, k, BN, BK);
  CHECK(cudaFuncSetAttribute(gemm_cluster, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
  dim3 grid(n / BN, m / BM);
  gemm_cluster<<<grid, THREADS, sizeof(Shared)>>>(ta, tb, c, m, n, k);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
}
