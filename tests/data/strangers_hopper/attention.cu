// FlashAttention-like forward: one producer warpgroup, two consumer warpgroups, Q K V by TMA, P from registers
#include <cuda.h>
#include <cuda_fp16.h>
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>
#include <cutlass/cutlass.h>

namespace flash {

template <int kBlockM_, int kBlockN_, int kHeadDim_, int kStages_>
struct Traits {
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kHeadDim = kHeadDim_, kStages = kStages_;
  static constexpr int kNThreads = 3 * 128;
  struct SharedStorage {
    alignas(1024) __half q[kBlockM * kHeadDim];
    alignas(1024) __half k[kStages][kBlockN * kHeadDim];
    alignas(1024) __half v[kStages][kBlockN * kHeadDim];
    alignas(8) uint64_t q_full;
    uint64_t k_full[kStages], v_full[kStages], empty[kStages];
  };
};

__device__ __forceinline__ uint32_t cast_smem(void const* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

struct Barrier {
  static __device__ __forceinline__ void init(uint64_t* b, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(cast_smem(b)), "r"(count));
  }
  static __device__ __forceinline__ void expect(uint64_t* b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(cast_smem(b)), "r"(bytes) : "memory");
  }
  static __device__ __forceinline__ void arrive(uint64_t* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(cast_smem(b)) : "memory");
  }
  static __device__ __forceinline__ void wait(uint64_t* b, uint32_t phase) {
    asm volatile(
        "{\n.reg .pred P;\nLAB_%=:\nmbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n@!P bra LAB_%=;\n}\n"
        ::"r"(cast_smem(b)), "r"(phase) : "memory");
  }
};

__device__ __forceinline__ void load(CUtensorMap const& map, uint64_t* bar, void* dst, int d, int row, int head) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      ::"r"(cast_smem(dst)), "l"(&map), "r"(cast_smem(bar)), "r"(d), "r"(row), "r"(head) : "memory");
}

__device__ __forceinline__ uint64_t descriptor(void const* p) {
  return (uint64_t)((cast_smem(p) & 0x3FFFF) >> 4) | (1ull << 16) | ((uint64_t)(1024 >> 4) << 32) | (1ull << 62);
}

#define ACC32(c) \
  "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), \
  "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), \
  "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), \
  "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
#define D32 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"

__device__ __forceinline__ void gemm_ss(float (&c)[32], uint64_t a, uint64_t b, int accumulate) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " D32 ", %32, %33, p, 1, 1, 0, 0;\n}\n"
               : ACC32(c) : "l"(a), "l"(b), "r"(accumulate));
}
__device__ __forceinline__ void gemm_rs(float (&c)[32], uint32_t const (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " D32 ", {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
               : ACC32(c) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void fence_regs() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wait_group() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

template <typename Kernel_traits>
__global__ void __launch_bounds__(Kernel_traits::kNThreads, 1)
flash_fwd_kernel(__half* __restrict__ out, float* __restrict__ lse, const __grid_constant__ CUtensorMap tma_q,
                 const __grid_constant__ CUtensorMap tma_k, const __grid_constant__ CUtensorMap tma_v,
                 int const seqlen, int const heads, float const scale_log2)
{
  using T = Kernel_traits;
  constexpr int kBlockM = T::kBlockM, kBlockN = T::kBlockN, kStages = T::kStages, kHeadDim = T::kHeadDim;
  extern __shared__ __align__(1024) char smem_buf[];
  auto& shared = *reinterpret_cast<typename T::SharedStorage*>(smem_buf);
  int const m_block = blockIdx.x, head = blockIdx.y;
  int const warp_group = threadIdx.x / 128;
  int const n_blocks = seqlen / kBlockN;

  if (threadIdx.x == 0) {
    Barrier::init(&shared.q_full, 1);
    for (int i = 0; i < kStages; ++i) {
      Barrier::init(&shared.k_full[i], 1);
      Barrier::init(&shared.v_full[i], 1);
      Barrier::init(&shared.empty[i], 2);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (warp_group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) {
      Barrier::expect(&shared.q_full, sizeof(shared.q));
      load(tma_q, &shared.q_full, shared.q, 0, m_block * kBlockM, head);
      for (int n = 0; n < n_blocks; ++n) {
        int const stage = n % kStages;
        Barrier::wait(&shared.empty[stage], ((n / kStages) & 1) ^ 1);
        Barrier::expect(&shared.k_full[stage], sizeof(shared.k[0]));
        load(tma_k, &shared.k_full[stage], shared.k[stage], 0, n * kBlockN, head);
        Barrier::expect(&shared.v_full[stage], sizeof(shared.v[0]));
        load(tma_v, &shared.v_full[stage], shared.v[stage], 0, n * kBlockN, head);
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    int const wg = warp_group - 1;
    float o[32], s[32], row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < 32; ++i) o[i] = 0.f;
    Barrier::wait(&shared.q_full, 0);
    if (wg == 1) asm volatile("bar.arrive 1, 256;" ::: "memory");
    for (int n = 0; n < n_blocks; ++n) {
      int const stage = n % kStages, phase = (n / kStages) & 1;
      Barrier::wait(&shared.k_full[stage], phase);
      // take turns: the scores of one, then of the other
      asm volatile("bar.sync %0, 256;" ::"r"(1 + wg) : "memory");
      fence_regs();
#pragma unroll
      for (int k = 0; k < kHeadDim; k += 16)
        gemm_ss(s, descriptor(shared.q + wg * 64 * kHeadDim + k), descriptor(shared.k[stage] + k), k > 0);
      commit();
      asm volatile("bar.arrive %0, 256;" ::"r"(2 - wg) : "memory");
      wait_group<0>();
      uint32_t p[4][4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float most = row_max[r];
#pragma unroll
        for (int i = 0; i < 32; i += 4) most = fmaxf(most, fmaxf(s[i + 2 * r], s[i + 2 * r + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
        float const rescale = exp2f((row_max[r] - most) * scale_log2);
        row_max[r] = most;
        row_sum[r] *= rescale;
#pragma unroll
        for (int i = 0; i < 32; i += 4) {
          o[i + 2 * r] *= rescale;
          o[i + 2 * r + 1] *= rescale;
          s[i + 2 * r] = exp2f((s[i + 2 * r] - most) * scale_log2);
          s[i + 2 * r + 1] = exp2f((s[i + 2 * r + 1] - most) * scale_log2);
          row_sum[r] += s[i + 2 * r] + s[i + 2 * r + 1];
        }
      }
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          __half2 const h = __floats2half2_rn(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
          p[k][i] = reinterpret_cast<uint32_t const&>(h);
        }
      Barrier::wait(&shared.v_full[stage], phase);
      fence_regs();
#pragma unroll
      for (int k = 0; k < kBlockN / 16; ++k) gemm_rs(o, p[k], descriptor(shared.v[stage] + k * 16 * kHeadDim));
      commit();
      wait_group<0>();
      if (threadIdx.x % 128 == 0) Barrier::arrive(&shared.empty[stage]);
    }
    if (wg == 0) asm volatile("bar.sync 1, 256;" ::: "memory");
    int const lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = row_sum[r];
      sum += __shfl_xor_sync(0xffffffff, sum, 1);
      sum += __shfl_xor_sync(0xffffffff, sum, 2);
      int const row = m_block * kBlockM + wg * 64 + warp * 16 + lane / 4 + 8 * r;
      if (lane % 4 == 0) lse[(size_t)head * seqlen + row] = row_max[r] * scale_log2 + log2f(sum);
      __half* at = out + ((size_t)head * seqlen + row) * kHeadDim;
#pragma unroll
      for (int j = 0; j < 8; ++j)
        *reinterpret_cast<__half2*>(at + j * 8 + lane % 4 * 2) =
            __floats2half2_rn(o[4 * j + 2 * r] / sum, o[4 * j + 2 * r + 1] / sum);
    }
  }
}

inline CUtensorMap make_tma(at::Tensor const& t, int heads, int rows, int cols, int box_rows) {
  CUtensorMap map;
  uint64_t dims[] = {uint64_t(cols), uint64_t(rows), uint64_t(heads)};
  uint64_t strides[] = {uint64_t(t.stride(1)) * 2, uint64_t(t.stride(0)) * 2};
  uint32_t box[] = {uint32_t(cols), uint32_t(box_rows), 1u};
  uint32_t steps[] = {1, 1, 1};
  auto const result = cuTensorMapEncodeTiled(
      &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, t.data_ptr(), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TORCH_CHECK(result == CUDA_SUCCESS, "tensor map");
  return map;
}

template <typename Kernel_traits>
void run_flash_fwd(at::Tensor const& q, at::Tensor const& k, at::Tensor const& v, at::Tensor& out, at::Tensor& lse, float scale,
                   cudaStream_t stream) {
  int const heads = q.size(0), seqlen = q.size(1);
  auto tma_q = make_tma(q, heads, seqlen, Kernel_traits::kHeadDim, Kernel_traits::kBlockM);
  auto tma_k = make_tma(k, heads, seqlen, Kernel_traits::kHeadDim, Kernel_traits::kBlockN);
  auto tma_v = make_tma(v, heads, seqlen, Kernel_traits::kHeadDim, Kernel_traits::kBlockN);
  auto kernel = &flash_fwd_kernel<Kernel_traits>;
  int const smem_size = sizeof(typename Kernel_traits::SharedStorage);
  C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_size));
  dim3 grid(seqlen / Kernel_traits::kBlockM, heads);
  kernel<<<grid, Kernel_traits::kNThreads, smem_size, stream>>>(
      reinterpret_cast<__half*>(out.data_ptr()), lse.data_ptr<float>(), tma_q, tma_k, tma_v, seqlen, heads,
      scale * float(M_LOG2E));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace flash

std::vector<at::Tensor> mha_fwd(at::Tensor q, at::Tensor k, at::Tensor v, double scale) {
  auto out = torch::empty_like(q);
  auto lse = torch::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
  auto stream = at::cuda::getCurrentCUDAStream().stream();
  flash::run_flash_fwd<flash::Traits<128, 64, 64, 2>>(q, k, v, out, lse, scale, stream);
  return {out, lse};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("fwd", &mha_fwd, "Forward pass"); }
