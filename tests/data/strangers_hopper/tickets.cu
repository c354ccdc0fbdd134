// Persistent kernel with a dynamic tile scheduler: tickets by atomics go through shared memory; TMA store of fp16
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda/ptx>
#include <cuda/std/array>
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>

namespace ptx = cuda::ptx;

template <int TM_, int TN_>
struct Config {
  static constexpr int TM = TM_;
  static constexpr int TN = TN_;
  static constexpr int kThreads = 128 + 32;
};

template <class Cfg>
struct alignas(128) SharedMemory {
  alignas(128) __half in[2][Cfg::TM][Cfg::TN];
  alignas(128) __half out[Cfg::TM][Cfg::TN];
  uint64_t full[2], empty[2];
  int tile[2];
};

template <class Cfg>
__global__ void __launch_bounds__(Cfg::kThreads) gelu_persistent(const __grid_constant__ CUtensorMap src, const __grid_constant__ CUtensorMap dst, int* ticket, int tiles_m, int tiles_n)
{
  extern __shared__ __align__(128) char smem_raw[];
  auto& sm = *reinterpret_cast<SharedMemory<Cfg>*>(smem_raw);
  const int tiles = tiles_m * tiles_n;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(&sm.full[i], 1);
      ptx::mbarrier_init(&sm.empty[i], 128);
    }
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) {
      for (int it = 0;; ++it) {
        const int s = it % 2;
        while (!ptx::mbarrier_try_wait_parity(&sm.empty[s], (it / 2 & 1) ^ 1)) {}
        const int t = atomicAdd(ticket, 1);
        sm.tile[s] = t < tiles ? t : -1;
        if (t >= tiles) {
          ptx::mbarrier_arrive(&sm.full[s]);
          break;
        }
        const int32_t at[2] = {t % tiles_n * Cfg::TN, t / tiles_n * Cfg::TM};
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, &sm.in[s], &src, at, &sm.full[s]);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &sm.full[s], sizeof(sm.in[s]));
      }
    }
  } else {
    for (int it = 0;; ++it) {
      const int s = it % 2;
      while (!ptx::mbarrier_try_wait_parity(&sm.full[s], it / 2 & 1)) {}
      const int t = sm.tile[s];
      if (t < 0) break;
      if (threadIdx.x == 0) ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
      asm volatile("bar.sync 1, 128;" ::: "memory");
      for (int i = threadIdx.x; i < Cfg::TM * Cfg::TN; i += 128) {
        const float x = __half2float(sm.in[s][i / Cfg::TN][i % Cfg::TN]);
        sm.out[i / Cfg::TN][i % Cfg::TN] = __float2half(x / (1.f + __expf(-1.702f * x)));
      }
      ptx::fence_proxy_async(ptx::space_shared);
      ptx::mbarrier_arrive(&sm.empty[s]);
      asm volatile("bar.sync 1, 128;" ::: "memory");
      if (threadIdx.x == 0) {
        const int32_t at[2] = {t % tiles_n * Cfg::TN, t / tiles_n * Cfg::TM};
        ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &dst, at, &sm.out);
        ptx::cp_async_bulk_commit_group();
      }
    }
    if (threadIdx.x == 0) ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
  }
}

template <class Cfg>
CUtensorMap tensor_map_2d(__half* ptr, uint64_t rows, uint64_t cols)
{
  CUtensorMap map;
  const cuuint64_t dims[2]{cols, rows};
  const cuuint64_t strides[1]{cols * sizeof(__half)};
  const cuuint32_t box[2]{Cfg::TN, Cfg::TM};
  const cuuint32_t ones[2]{1, 1};
  if (cuTensorMapEncodeTiled(&map, CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, ptr, dims, strides, box, ones,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
    throw std::string("no map");
  return map;
}

template <class Cfg>
void run(__half* src, __half* dst, int* ticket, int rows, int cols)
{
  auto in = tensor_map_2d<Cfg>(src, rows, cols);
  auto out = tensor_map_2d<Cfg>(dst, rows, cols);
  int device = 0, sms = 0;
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  const auto smem = sizeof(SharedMemory<Cfg>);
  cudaFuncSetAttribute(gelu_persistent<Cfg>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
  cudaMemset(ticket, 0, sizeof(int));
  gelu_persistent<Cfg><<<sms, Cfg::kThreads, smem>>>(in, out, ticket, rows / Cfg::TM, cols / Cfg::TN);
}

int main()
{
  const int rows = 1024, cols = 2048;
  __half *src, *dst;
  int* ticket;
  cudaMalloc(&src, rows * cols * sizeof(__half));
  cudaMalloc(&dst, rows * cols * sizeof(__half));
  cudaMalloc(&ticket, sizeof(int));
  run<Config<16, 64>>(src, dst, ticket, rows, cols);
  cudaDeviceSynchronize();
}
