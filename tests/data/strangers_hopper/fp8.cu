// DeepGEMM-like: fp8 with scales of rows and of blocks, JIT-like template on shapes, TMA store, griddepcontrol
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <stdexcept>

namespace mini_gemm {

__device__ __host__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__device__ __forceinline__ uint32_t smem_ptr(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

struct ClusterTransactionBarrier {
  uint64_t value;
  __device__ __forceinline__ void init(uint32_t n) { asm volatile("mbarrier.init.shared::cta.b64 [%1], %0;" ::"r"(n), "r"(smem_ptr(&value))); }
  __device__ __forceinline__ void wait(uint32_t phase) {
    asm volatile("{\n\t.reg .pred P1;\n\tLAB_WAIT:\n\tmbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n\t"
                 "@P1 bra DONE;\n\tbra LAB_WAIT;\n\tDONE:\n\t}" ::"r"(smem_ptr(&value)), "r"(phase) : "memory");
  }
  __device__ __forceinline__ void arrive() { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_ptr(&value)) : "memory"); }
  __device__ __forceinline__ void arrive_and_expect_tx(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%1], %0;" ::"r"(bytes), "r"(smem_ptr(&value)) : "memory");
  }
};

__device__ __forceinline__ void tma_copy(const CUtensorMap* desc, ClusterTransactionBarrier* bar, void* dst, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;"
               ::"r"(smem_ptr(dst)), "l"(desc), "r"(smem_ptr(bar)), "r"(x), "r"(y), "l"(0x1000000000000000ull) : "memory");
}

template <uint32_t SHAPE_N, uint32_t BLOCK_M, uint32_t BLOCK_N>
struct Scheduler {
  int current_iter = -1;
  uint32_t num_m_blocks, num_blocks;
  static constexpr uint32_t kNumNBlocks = SHAPE_N / BLOCK_N;
  __device__ explicit Scheduler(uint32_t shape_m) : num_m_blocks(ceil_div(shape_m, BLOCK_M)), num_blocks(num_m_blocks * kNumNBlocks) {}
  __device__ __forceinline__ bool get_next_block(uint32_t& m_block, uint32_t& n_block) {
    const uint32_t next = (++current_iter) * gridDim.x + blockIdx.x;
    if (next >= num_blocks) return false;
    m_block = next % num_m_blocks;
    n_block = next / num_m_blocks;
    return true;
  }
};

__device__ __forceinline__ void wgmma_fp8(float (&d)[32], uint64_t a, uint64_t b, bool scale_d) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
    "%24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1;\n}\n"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
      "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
      "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]),
      "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
    : "l"(a), "l"(b), "r"(int(scale_d)));
}

union GmmaDescriptor {
  uint64_t desc_;
  struct {
    uint16_t start_address_ : 14, : 2;
    uint16_t leading_byte_offset_ : 14, : 2;
    uint16_t stride_byte_offset_ : 14, : 2;
    uint8_t : 1, base_offset_ : 3, : 4;
    uint8_t : 6, layout_type_ : 2;
  } bitfield;
};
template <class P>
__device__ uint64_t make_smem_desc(P p, int layout_type, int leading = 0, int stride = 1024) {
  GmmaDescriptor d;
  d.desc_ = 0;
  d.bitfield.start_address_ = smem_ptr(p) >> 4;
  d.bitfield.layout_type_ = layout_type;
  d.bitfield.leading_byte_offset_ = leading >> 4;
  d.bitfield.stride_byte_offset_ = stride >> 4;
  return d.desc_;
}

template <uint32_t SHAPE_N, uint32_t SHAPE_K, uint32_t BLOCK_M, uint32_t BLOCK_N, uint32_t BLOCK_K, uint32_t kNumStages>
__global__ void __launch_bounds__(256, 1)
fp8_gemm_kernel(float* scales_b, float* scales_a, uint32_t shape_m, const __grid_constant__ CUtensorMap tensor_map_a,
                const __grid_constant__ CUtensorMap tensor_map_b, const __grid_constant__ CUtensorMap tensor_map_d)
{
  static_assert(BLOCK_K == 128 && BLOCK_M == 64 && BLOCK_N == 64);
  constexpr uint32_t kIters = SHAPE_K / BLOCK_K;
  constexpr uint32_t SMEM_D = BLOCK_M * BLOCK_N * sizeof(__nv_bfloat16);
  constexpr uint32_t SMEM_A = BLOCK_M * BLOCK_K, SMEM_B = BLOCK_N * BLOCK_K;
  extern __shared__ __align__(1024) uint8_t smem_buffer[];
  auto smem_d = reinterpret_cast<__nv_bfloat16*>(smem_buffer);
  auto smem_a = [&](uint32_t s) { return smem_buffer + SMEM_D + s * SMEM_A; };
  auto smem_b = [&](uint32_t s) { return smem_buffer + SMEM_D + kNumStages * SMEM_A + s * SMEM_B; };
  auto barriers = reinterpret_cast<ClusterTransactionBarrier*>(smem_buffer + SMEM_D + kNumStages * (SMEM_A + SMEM_B));
  auto full_barriers = barriers, empty_barriers = barriers + kNumStages;

  if (threadIdx.x == 128) {
    for (uint32_t i = 0; i < kNumStages; ++i) {
      full_barriers[i].init(1);
      empty_barriers[i].init(4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();
  asm volatile("griddepcontrol.wait;" ::: "memory");

  Scheduler<SHAPE_N, BLOCK_M, BLOCK_N> scheduler(shape_m);
  uint32_t m_block, n_block, iter = 0;
  if (threadIdx.x >= 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 128) {
      while (scheduler.get_next_block(m_block, n_block))
        for (uint32_t k = 0; k < kIters; ++k, ++iter) {
          const uint32_t s = iter % kNumStages, phase = (iter / kNumStages) & 1;
          empty_barriers[s].wait(phase ^ 1);
          tma_copy(&tensor_map_a, &full_barriers[s], smem_a(s), k * BLOCK_K, m_block * BLOCK_M);
          tma_copy(&tensor_map_b, &full_barriers[s], smem_b(s), k * BLOCK_K, n_block * BLOCK_N);
          full_barriers[s].arrive_and_expect_tx(SMEM_A + SMEM_B);
        }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    while (scheduler.get_next_block(m_block, n_block)) {
      float final_accum[32] = {0}, accum[32];
      const uint32_t row_0 = m_block * BLOCK_M + warp * 16 + lane / 4, row_1 = row_0 + 8;
      for (uint32_t k = 0; k < kIters; ++k, ++iter) {
        const uint32_t s = iter % kNumStages, phase = (iter / kNumStages) & 1;
        const float scale_b = __ldg(scales_b + (n_block * BLOCK_N / 128) * kIters + k);
        const float scale_a_0 = row_0 < shape_m ? __ldg(scales_a + k * shape_m + row_0) : 0.f;
        const float scale_a_1 = row_1 < shape_m ? __ldg(scales_a + k * shape_m + row_1) : 0.f;
        full_barriers[s].wait(phase);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (uint32_t kk = 0; kk < BLOCK_K / 32; ++kk)
          wgmma_fp8(accum, make_smem_desc(smem_a(s) + kk * 32, 1), make_smem_desc(smem_b(s) + kk * 32, 1), kk);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (lane == 0) empty_barriers[s].arrive();
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          final_accum[4 * i + 0] += scale_a_0 * scale_b * accum[4 * i + 0];
          final_accum[4 * i + 1] += scale_a_0 * scale_b * accum[4 * i + 1];
          final_accum[4 * i + 2] += scale_a_1 * scale_b * accum[4 * i + 2];
          final_accum[4 * i + 3] += scale_a_1 * scale_b * accum[4 * i + 3];
        }
      }
      if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
      asm volatile("bar.sync 8, 128;" ::: "memory");
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int col = i * 8 + lane % 4 * 2, row = warp * 16 + lane / 4;
        *reinterpret_cast<__nv_bfloat162*>(smem_d + row * BLOCK_N + col) = __floats2bfloat162_rn(final_accum[4 * i], final_accum[4 * i + 1]);
        *reinterpret_cast<__nv_bfloat162*>(smem_d + (row + 8) * BLOCK_N + col) = __floats2bfloat162_rn(final_accum[4 * i + 2], final_accum[4 * i + 3]);
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      asm volatile("bar.sync 8, 128;" ::: "memory");
      if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
                     ::"l"(&tensor_map_d), "r"(smem_ptr(smem_d)), "r"(n_block * BLOCK_N), "r"(m_block * BLOCK_M) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      }
    }
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
  asm volatile("griddepcontrol.launch_dependents;");
}

template <typename T> constexpr CUtensorMapDataType get_CUtensorMapDataType() {
  if constexpr (std::is_same<T, __nv_fp8_e4m3>::value) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  else if constexpr (std::is_same<T, __nv_bfloat16>::value) return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  else return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

template <typename T>
CUtensorMap make_2d_tma_desc(T* global_address, uint64_t gmem_rows, uint64_t gmem_cols, uint32_t smem_rows, uint32_t smem_cols,
                             CUtensorMapSwizzle swizzle_type = CU_TENSOR_MAP_SWIZZLE_128B) {
  uint64_t gmem_dim[2] = {gmem_cols, gmem_rows};
  uint32_t smem_dim[2] = {smem_cols, smem_rows};
  CUtensorMap tensor_map{};
  uint64_t gmem_strides[1] = {gmem_cols * sizeof(T)};
  uint32_t elem_strides[2] = {1, 1};
  static auto encode_func = get_encode_func();
  auto result = encode_func(&tensor_map, get_CUtensorMapDataType<typename std::remove_cv<T>::type>(), 2, global_address, gmem_dim,
                            gmem_strides, smem_dim, elem_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_type,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw std::runtime_error("encode");
  return tensor_map;
}

template <uint32_t SHAPE_N, uint32_t SHAPE_K, uint32_t BLOCK_M, uint32_t BLOCK_N, uint32_t BLOCK_K, uint32_t kNumStages>
class Gemm {
 public:
  static void run(__nv_bfloat16* d, float* scales_a, float* scales_b, uint32_t shape_m, const CUtensorMap& map_a,
                  const CUtensorMap& map_b, const CUtensorMap& map_d, cudaStream_t stream, int num_sms, uint32_t smem_size) {
    auto kernel = fp8_gemm_kernel<SHAPE_N, SHAPE_K, BLOCK_M, BLOCK_N, BLOCK_K, kNumStages>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_size);
    cudaLaunchConfig_t config;
    config.gridDim = num_sms;
    config.blockDim = 256;
    config.dynamicSmemBytes = smem_size;
    config.stream = stream;
    cudaLaunchAttribute attr;
    attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attr;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, kernel, scales_b, scales_a, shape_m, map_a, map_b, map_d);
  }
  template <typename T> static CUtensorMap make_2d_tma_a_desc(T* address, uint32_t shape_m) {
    return make_2d_tma_desc(address, shape_m, SHAPE_K, BLOCK_M, BLOCK_K);
  }
  template <typename T> static CUtensorMap make_2d_tma_b_desc(T* address) {
    return make_2d_tma_desc(address, SHAPE_N, SHAPE_K, BLOCK_N, BLOCK_K);
  }
  template <typename T> static CUtensorMap make_2d_tma_d_desc(T* address, uint32_t shape_m) {
    return make_2d_tma_desc(address, shape_m, SHAPE_N, BLOCK_M, BLOCK_N, CU_TENSOR_MAP_SWIZZLE_NONE);
  }
};

}  // namespace mini_gemm

extern "C" void launch(void* a, float* scales_a, void* b, float* scales_b, void* d, int m, cudaStream_t stream, int num_sms, uint32_t smem_size) {
  using namespace mini_gemm;
  constexpr auto N = 256, K = 512, BLOCK_M = 64, BLOCK_N = 64, kNumStages = 3;
  using gemm_t = Gemm<N, K, BLOCK_M, BLOCK_N, 128, kNumStages>;
  auto tma_a_desc = gemm_t::make_2d_tma_a_desc(reinterpret_cast<__nv_fp8_e4m3*>(a), m);
  auto tma_b_desc = gemm_t::make_2d_tma_b_desc(reinterpret_cast<__nv_fp8_e4m3*>(b));
  auto tma_d_desc = gemm_t::make_2d_tma_d_desc(reinterpret_cast<__nv_bfloat16*>(d), m);
  gemm_t::run(reinterpret_cast<__nv_bfloat16*>(d), scales_a, scales_b, m, tma_a_desc, tma_b_desc, tma_d_desc, stream, num_sms, smem_size);
}
