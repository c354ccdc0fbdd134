// Blog-series style: producer/consumer, SMem struct, __grid_constant__, circular queue, persistent schedule
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cassert>
#include <cstdint>
#include <cstdio>
#include <algorithm>

using bf16 = __nv_bfloat16;

__device__ static __forceinline__ void init_barrier(uint64_t* bar, int thread_count, int transaction_count) {
  uint32_t bar_ptr = static_cast<uint32_t>(__cvta_generic_to_shared(bar));
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(bar_ptr), "r"(thread_count + transaction_count));
}
__device__ static __forceinline__ void expect_bytes(uint64_t* bar, uint32_t bytes) {
  uint32_t bar_ptr = static_cast<uint32_t>(__cvta_generic_to_shared(bar));
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar_ptr), "r"(bytes));
}
__device__ static inline void load_async(bf16* dst, void const* const src_tma_map, uint64_t* bar, int global_col_idx, int global_row_idx) {
  uint64_t tma_ptr = reinterpret_cast<uint64_t>(src_tma_map);
  uint32_t mbar_ptr = static_cast<uint32_t>(__cvta_generic_to_shared(bar));
  uint32_t dst_ptr = static_cast<uint32_t>(__cvta_generic_to_shared(dst));
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];"
      :
      : "r"(dst_ptr), "l"(tma_ptr), "r"(mbar_ptr), "n"(0), "r"(global_row_idx), "r"(global_col_idx / 64)
      : "memory");
}
__device__ static __forceinline__ void wait(uint64_t* bar, int kPhaseBit) {
  uint32_t mbar_ptr = static_cast<uint32_t>(__cvta_generic_to_shared(bar));
  asm volatile(
      "{\n"
      ".reg .pred                P1;\n"
      "LAB_WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
      "@P1                       bra.uni DONE;\n"
      "bra.uni                   LAB_WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(mbar_ptr), "r"(kPhaseBit) : "memory");
}
__device__ static __forceinline__ void arrive(uint64_t* bar, uint32_t count = 1) {
  uint32_t mbar_ptr = static_cast<uint32_t>(__cvta_generic_to_shared(bar));
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0], %1;\n" : : "r"(mbar_ptr), "r"(count) : "memory");
}
__device__ static inline uint64_t encode(uint64_t x) { return (x & 0x3FFFF) >> 4; }
__device__ uint64_t make_smem_desc(bf16* ptr) {
  uint32_t addr = static_cast<uint32_t>(__cvta_generic_to_shared(ptr));
  return encode(addr) | (encode(16) << 16) | (encode(1024) << 32) | (1llu << 62);
}
__device__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ void warpgroup_commit_batch() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int N>
__device__ void warpgroup_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory"); }
template <uint32_t RegCount>
__device__ void warpgroup_reg_alloc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" : : "n"(RegCount)); }
template <uint32_t RegCount>
__device__ void warpgroup_reg_dealloc() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" : : "n"(RegCount)); }

__device__ __forceinline__ void wgmma_64(float d[4][8], bf16* sA, bf16* sB, int scaleD) {
  uint64_t desc_a = make_smem_desc(&sA[0]);
  uint64_t desc_b = make_smem_desc(&sB[0]);
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},"
      " %32, %33, p, 1, 1, 0, 0;\n}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[0][4]), "+f"(d[0][5]),
        "+f"(d[0][6]), "+f"(d[0][7]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[1][4]), "+f"(d[1][5]), "+f"(d[1][6]), "+f"(d[1][7]), "+f"(d[2][0]), "+f"(d[2][1]),
        "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[2][4]), "+f"(d[2][5]), "+f"(d[2][6]), "+f"(d[2][7]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[3][4]), "+f"(d[3][5]),
        "+f"(d[3][6]), "+f"(d[3][7])
      : "l"(desc_a), "l"(desc_b), "r"(scaleD));
}

template <int BlockMajorSize, int BlockMinorSize>
__host__ static inline CUtensorMap create_tensor_map(bf16* gmem_ptr, int global_height, int global_width) {
  CUtensorMap tma_map;
  void* gmem_address = (void*)gmem_ptr;
  static_assert(BlockMinorSize >= 64);
  assert(global_width % 64 == 0);
  uint64_t gmem_prob_shape[5] = {64, (uint64_t)global_height, (uint64_t)global_width / 64, 1, 1};
  uint64_t gmem_prob_stride[5] = {sizeof(bf16) * global_width, 64 * sizeof(bf16), 0, 0, 0};
  uint32_t smem_box_shape[5] = {64, uint32_t(BlockMajorSize), uint32_t(BlockMinorSize / 64), 1, 1};
  uint32_t smem_box_stride[5] = {1, 1, 1, 1, 1};
  CUresult result = cuTensorMapEncodeTiled(
      &tma_map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, gmem_address, gmem_prob_shape, gmem_prob_stride,
      smem_box_shape, smem_box_stride, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  assert(result == CUDA_SUCCESS);
  return tma_map;
}

CUtensorMap d_tma_map_A;
CUtensorMap d_tma_map_B;

template <int NUM_SM, int BM, int BN>
struct Schedule {
  int it, tiles_n, tiles;
  __device__ Schedule(int M, int N) : it(blockIdx.x), tiles_n(N / BN), tiles((M / BM) * (N / BN)) {}
  __device__ bool next(int& m, int& n) {
    if (it >= tiles) return false;
    m = it / tiles_n;
    n = it % tiles_n;
    it += NUM_SM;
    return true;
  }
};

template <int BM, int BN, int BK, int QSIZE>
struct SMem {
  alignas(128) bf16 A[BM * BK * QSIZE];
  alignas(128) bf16 B[BK * BN * QSIZE];
  alignas(8) uint64_t full[QSIZE], empty[QSIZE];
};

template <int BM, int BN, int BK, int NUM_THREADS, int QSIZE, int NUM_SM>
__global__ __launch_bounds__(NUM_THREADS, 1) void matmulKernel8(int M, int N, int K, bf16* C, const __grid_constant__ CUtensorMap tensorMapA, const __grid_constant__ CUtensorMap tensorMapB) {
  constexpr int WGMMA_M = 64, WGMMA_K = 16;
  constexpr int num_consumers = (NUM_THREADS / 128) - 1;
  constexpr int B_WG_M = BM / num_consumers;
  extern __shared__ __align__(128) uint8_t smem[];
  SMem<BM, BN, BK, QSIZE>& s = *reinterpret_cast<SMem<BM, BN, BK, QSIZE>*>(smem);
  bf16 *sA = s.A, *sB = s.B;
  uint64_t *full = s.full, *empty = s.empty;

  const int num_blocks_k = K / BK;
  int wg_idx = threadIdx.x / 128;
  int tid = threadIdx.x % 128;

  if (threadIdx.x == 0) {
    for (int i = 0; i < QSIZE; ++i) {
      init_barrier(&full[i], 0, 1);
      init_barrier(&empty[i], 0, num_consumers);
    }
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  __syncthreads();
  Schedule<NUM_SM, BM, BN> schedule(M, N);

  if (wg_idx == 0) {
    warpgroup_reg_dealloc<24>();
    if (tid == 0) {
      int p = 0, qidx = 0, num_block_m, num_block_n;
      while (schedule.next(num_block_m, num_block_n)) {
        for (int block_k_iter = 0; block_k_iter < num_blocks_k; ++block_k_iter, ++qidx) {
          if (qidx == QSIZE) {
            qidx = 0;
            p ^= 1;
          }
          wait(&empty[qidx], p ^ 1);
          expect_bytes(&full[qidx], (BK * BN + BK * BM) * sizeof(bf16));
          load_async(&sA[qidx * BK * BM], &tensorMapA, &full[qidx], block_k_iter * BK, num_block_m * BM);
          load_async(&sB[qidx * BK * BN], &tensorMapB, &full[qidx], block_k_iter * BK, num_block_n * BN);
        }
      }
      // drain
      for (int i = 0; i < QSIZE; ++i, ++qidx) {
        if (qidx == QSIZE) {
          qidx = 0;
          p ^= 1;
        }
        wait(&empty[qidx], p ^ 1);
      }
    }
  } else {
    warpgroup_reg_alloc<240>();
    --wg_idx;
    float d[B_WG_M / WGMMA_M][4][8];
    int p = 0, qidx = 0, num_block_m, num_block_n;
    while (schedule.next(num_block_m, num_block_n)) {
      for (int block_k_iter = 0; block_k_iter < num_blocks_k; ++block_k_iter, ++qidx) {
        if (qidx == QSIZE) {
          qidx = 0;
          p ^= 1;
        }
        wait(&full[qidx], p);
        warpgroup_arrive();
#pragma unroll
        for (int m_it = 0; m_it < B_WG_M / WGMMA_M; ++m_it) {
          bf16* wgmma_sA = sA + qidx * BK * BM + BK * (m_it + wg_idx * B_WG_M / WGMMA_M) * WGMMA_M;
#pragma unroll
          for (int k_it = 0; k_it < BK / WGMMA_K; ++k_it)
            wgmma_64(d[m_it], &wgmma_sA[k_it * WGMMA_K], &sB[qidx * BK * BN + k_it * WGMMA_K], block_k_iter > 0 || k_it > 0);
        }
        warpgroup_commit_batch();
        warpgroup_wait<0>();
        if (tid == 0) arrive(&empty[qidx]);
      }
      int lane = tid % 32, warp = tid / 32;
      int row = warp * 16 + lane / 4;
      bf16* block_C = C + num_block_n * BN * M + num_block_m * BM;
#pragma unroll
      for (int m_it = 0; m_it < B_WG_M / WGMMA_M; ++m_it) {
        int yo = m_it * WGMMA_M + wg_idx * B_WG_M;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          int col = 16 * w + 2 * (tid % 4);
#define ST(i, j, v) block_C[(j) * M + (i) + yo] = v;
          ST(row, col, d[m_it][w][0]);
          ST(row, col + 1, d[m_it][w][1]);
          ST(row + 8, col, d[m_it][w][2]);
          ST(row + 8, col + 1, d[m_it][w][3]);
          ST(row, col + 8, d[m_it][w][4]);
          ST(row, col + 9, d[m_it][w][5]);
          ST(row + 8, col + 8, d[m_it][w][6]);
          ST(row + 8, col + 9, d[m_it][w][7]);
#undef ST
        }
      }
    }
  }
}

void runKernel8(int M, int N, int K, bf16* A, bf16* B, bf16* C) {
  constexpr int BM = 128;
  constexpr int BN = 64;
  constexpr int BK = 64;
  constexpr int NUM_THREADS = 128 * 3;
  constexpr int QSIZE = 3;
  constexpr int NUM_SM = 128;
  d_tma_map_A = create_tensor_map<BM, BK>(A, M, K);
  d_tma_map_B = create_tensor_map<BN, BK>(B, N, K);
  auto* kernel = matmulKernel8<BM, BN, BK, NUM_THREADS, QSIZE, NUM_SM>;
  constexpr size_t sMemSize = sizeof(SMem<BM, BN, BK, QSIZE>);
  static_assert(sMemSize < 256 * 1024);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sMemSize);
  kernel<<<NUM_SM, NUM_THREADS, sMemSize>>>(M, N, K, C, d_tma_map_A, d_tma_map_B);
}

int main() {
  long m = 8192, n = 8192, k = 8192;
  bf16 *dA, *dB, *dC;
  cudaMalloc((void**)&dA, sizeof(bf16) * m * k);
  cudaMalloc((void**)&dB, sizeof(bf16) * n * k);
  cudaMalloc((void**)&dC, sizeof(bf16) * m * n);
  runKernel8(m, n, k, dA, dB, dC);
  printf("%d\n", (int)cudaDeviceSynchronize());
}
