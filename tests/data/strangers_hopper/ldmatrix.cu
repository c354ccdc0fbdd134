// Tutorial style: PyTorch binding, raw driver API through cudaGetDriverEntryPoint, int smem addresses
#include <cuda_bf16.h>
#include <cudaTypedefs.h>
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

constexpr int WARP_SIZE = 32;

__device__ inline uint32_t elect_sync() {
  uint32_t pred = 0;
  asm volatile(
    "{\n\t"
    ".reg .pred %%px;\n\t"
    "elect.sync _|%%px, %1;\n\t"
    "@%%px mov.s32 %0, 1;\n\t"
    "}"
    : "+r"(pred)
    : "r"(0xFFFFFFFF)
  );
  return pred;
}

__device__ inline void mbarrier_init(int mbar_addr, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(mbar_addr), "r"(count));
}

__device__ void mbarrier_wait(int mbar_addr, int phase) {
  uint32_t ticks = 0x989680;
  asm volatile(
    "{\n\t"
    ".reg .pred P1;\n\t"
    "LAB_WAIT:\n\t"
    "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 P1, [%0], %1, %2;\n\t"
    "@P1 bra.uni DONE;\n\t"
    "bra.uni LAB_WAIT;\n\t"
    "DONE:\n\t"
    "}"
    :: "r"(mbar_addr), "r"(phase), "r"(ticks)
  );
}

__device__ inline void tma_2d_gmem2smem(int dst, const void *tmap_ptr, int x, int y, int mbar_addr) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
              :: "r"(dst), "l"(tmap_ptr), "r"(x), "r"(y), "r"(mbar_addr) : "memory");
}

template <typename T>
__device__ void ldmatrix_x4(T *regs, int addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(regs[0]), "=r"(regs[1]), "=r"(regs[2]), "=r"(regs[3]) : "r"(addr) : "memory");
}

__device__ inline void mma_bf16(uint32_t A[4], uint32_t B[2], float D[4]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
              "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
              : "=f"(D[0]), "=f"(D[1]), "=f"(D[2]), "=f"(D[3])
              : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]),
                "f"(D[0]), "f"(D[1]), "f"(D[2]), "f"(D[3]));
}

// 128B swizzle of a row of 128 bytes
__device__ inline int swizzle(int row, int col_bytes) { return row * 128 + (col_bytes ^ ((row % 8) * 16)); }

template <int BLOCK_M, int BLOCK_N, int BLOCK_K, int NUM_STAGES>
__launch_bounds__(5 * WARP_SIZE)
__global__
void matmul_v2_kernel(
  const __grid_constant__ CUtensorMap A_tmap,
  const __grid_constant__ CUtensorMap B_tmap,
  nv_bfloat16 *C_ptr,
  int M, int N, int K
) {
  const int tid = threadIdx.x;
  const int warp_id = tid / WARP_SIZE;
  const int lane_id = tid % WARP_SIZE;
  const int bid = blockIdx.x;

  const int grid_n = N / BLOCK_N;
  const int bid_m = bid / grid_n;
  const int bid_n = bid % grid_n;
  const int off_m = bid_m * BLOCK_M;
  const int off_n = bid_n * BLOCK_N;

  extern __shared__ __align__(1024) char smem_ptr[];
  const int smem = static_cast<int>(__cvta_generic_to_shared(smem_ptr));
  constexpr int A_size = BLOCK_M * BLOCK_K * sizeof(nv_bfloat16);
  constexpr int B_size = BLOCK_N * BLOCK_K * sizeof(nv_bfloat16);

#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ uint64_t mbars[NUM_STAGES * 2];
  const int tma_mbar = static_cast<int>(__cvta_generic_to_shared(mbars));
  const int mma_mbar = tma_mbar + NUM_STAGES * 8;

  if (warp_id == 0 && elect_sync()) {
    for (int i = 0; i < NUM_STAGES; i++) {
      mbarrier_init(tma_mbar + i * 8, 1);
      mbarrier_init(mma_mbar + i * 8, 4 * WARP_SIZE);
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();

  const int num_iters = K / BLOCK_K;
  if (warp_id == 4) {
    if (elect_sync()) {
      for (int iter = 0; iter < num_iters; iter++) {
        const int stage = iter % NUM_STAGES;
        if (iter >= NUM_STAGES) mbarrier_wait(mma_mbar + stage * 8, (iter / NUM_STAGES - 1) % 2);
        const int mbar = tma_mbar + stage * 8;
        const int A_smem = smem + stage * (A_size + B_size);
        const int B_smem = A_smem + A_size;
        tma_2d_gmem2smem(A_smem, &A_tmap, iter * BLOCK_K, off_m, mbar);
        tma_2d_gmem2smem(B_smem, &B_tmap, iter * BLOCK_K, off_n, mbar);
        asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;"
                    :: "r"(mbar), "r"(A_size + B_size) : "memory");
      }
    }
  } else {
    float acc[BLOCK_N / 8][4] = {};
    for (int iter = 0; iter < num_iters; iter++) {
      const int stage = iter % NUM_STAGES;
      mbarrier_wait(tma_mbar + stage * 8, (iter / NUM_STAGES) % 2);
      const int A_smem = smem + stage * (A_size + B_size);
      const int B_smem = A_smem + A_size;
      for (int k = 0; k < BLOCK_K; k += 16) {
        uint32_t a[4];
        ldmatrix_x4(a, A_smem + swizzle(warp_id * 16 + lane_id % 16, (k + lane_id / 16 * 8) * 2));
        for (int n = 0; n < BLOCK_N; n += 16) {
          uint32_t b[4];
          ldmatrix_x4(b, B_smem + swizzle(n + lane_id % 8 + lane_id / 16 * 8, (k + lane_id / 8 % 2 * 8) * 2));
          mma_bf16(a, b, acc[n / 8]);
          mma_bf16(a, b + 2, acc[n / 8 + 1]);
        }
      }
      asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" :: "r"(mma_mbar + stage * 8) : "memory");
    }
    const int row = off_m + warp_id * 16 + lane_id / 4;
    for (int n = 0; n < BLOCK_N / 8; n++) {
      const int col = off_n + n * 8 + lane_id % 4 * 2;
      reinterpret_cast<nv_bfloat162 *>(C_ptr + row * N + col)[0] = __float22bfloat162_rn({acc[n][0], acc[n][1]});
      reinterpret_cast<nv_bfloat162 *>(C_ptr + (row + 8) * N + col)[0] = __float22bfloat162_rn({acc[n][2], acc[n][3]});
    }
  }
}

void check_cu(CUresult err) {
  if (err == CUDA_SUCCESS) return;
  const char *error_msg_ptr;
  if (cuGetErrorString(err, &error_msg_ptr) != CUDA_SUCCESS) error_msg_ptr = "unable to get error string";
  TORCH_CHECK(false, "cuTensorMapEncodeTiled error: ", error_msg_ptr);
}

void init_2d_tmap(
  CUtensorMap *tmap,
  const nv_bfloat16 *ptr,
  uint64_t global_height, uint64_t global_width,
  uint32_t shared_height, uint32_t shared_width
) {
  constexpr uint32_t rank = 2;
  uint64_t globalDim[rank]       = {global_width, global_height};
  uint64_t globalStrides[rank-1] = {global_width * sizeof(nv_bfloat16)};
  uint32_t boxDim[rank]          = {shared_width, shared_height};
  uint32_t elementStrides[rank]  = {1, 1};

  auto err = cuTensorMapEncodeTiled(
    tmap,
    CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    rank,
    (void *)ptr,
    globalDim,
    globalStrides,
    boxDim,
    elementStrides,
    CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
    CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
    CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
    CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
  );
  check_cu(err);
}

void matmul_v2(const nv_bfloat16 *A_ptr, const nv_bfloat16 *B_ptr, nv_bfloat16 *C_ptr, int M, int N, int K) {
  constexpr int BLOCK_M = 64;
  constexpr int BLOCK_N = 64;
  constexpr int BLOCK_K = 64;
  constexpr int NUM_STAGES = 3;

  CUtensorMap A_tmap, B_tmap;
  init_2d_tmap(&A_tmap, A_ptr, M, K, BLOCK_M, BLOCK_K);
  init_2d_tmap(&B_tmap, B_ptr, N, K, BLOCK_N, BLOCK_K);

  int grid = (M / BLOCK_M) * (N / BLOCK_N);
  int smem_size = (BLOCK_M + BLOCK_N) * BLOCK_K * sizeof(nv_bfloat16) * NUM_STAGES;

  auto this_kernel = matmul_v2_kernel<BLOCK_M, BLOCK_N, BLOCK_K, NUM_STAGES>;
  if (smem_size > 48'000)
    cudaFuncSetAttribute(this_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_size);
  this_kernel<<<grid, 5 * WARP_SIZE, smem_size>>>(A_tmap, B_tmap, C_ptr, M, N, K);
}

at::Tensor matmul(const at::Tensor& A, const at::Tensor& B) {
  const int M = A.size(0);
  const int K = A.size(1);
  const int N = B.size(1);
  at::Tensor C = at::empty({M, N}, A.options());
  matmul_v2(reinterpret_cast<nv_bfloat16 *>(A.data_ptr()), reinterpret_cast<nv_bfloat16 *>(B.data_ptr()),
            reinterpret_cast<nv_bfloat16 *>(C.data_ptr()), M, N, K);
  return C;
}

TORCH_LIBRARY(my_matmul, m) {
  m.def("matmul_v2(Tensor A, Tensor B) -> Tensor");
  m.impl("matmul_v2", &matmul);
}
