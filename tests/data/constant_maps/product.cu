// A matrix product whose maps and sizes are a struct in constant memory
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdint>

constexpr int BM = 32, BN = 32, BK = 16;
struct Problem {
  CUtensorMap a;
  CUtensorMap b;
  int M, N, K;
};
__constant__ Problem problem;

__device__ uint32_t at(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ void init(uint64_t* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(bar)), "r"(count));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ void expect(uint64_t* bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(bar)), "r"(bytes) : "memory");
}
__device__ void wait(uint64_t* bar, uint32_t phase) {
  asm volatile("{\n.reg .pred p;\nW:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra W;\n}" ::"r"(at(bar)), "r"(phase) : "memory");
}
__device__ void load(void* to, const CUtensorMap* map, int x, int y, uint64_t* bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(at(to)), "l"(map), "r"(x), "r"(y), "r"(at(bar)) : "memory");
}
__device__ void store(const CUtensorMap* map, int x, int y, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
               ::"l"(map), "r"(x), "r"(y), "r"(at(from)) : "memory");
  asm volatile("cp.async.bulk.commit_group;");
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__global__ void __launch_bounds__(256) product(float* C)
{
  __shared__ alignas(128) float sA[BM * BK];
  __shared__ alignas(128) float sB[BK * BN];
  __shared__ alignas(8) uint64_t bar;
  if (threadIdx.x == 0) init(&bar, 1);
  __syncthreads();
  const int row = threadIdx.x / 32, col = threadIdx.x % 32;
  float sum[4] = {};
  uint32_t phase = 0;
  for (int k = 0; k < problem.K; k += BK) {
    if (threadIdx.x == 0) {
      expect(&bar, sizeof(sA) + sizeof(sB));
      load(sA, &problem.a, k, blockIdx.y * BM, &bar);
      load(sB, &problem.b, blockIdx.x * BN, k, &bar);
    }
    wait(&bar, phase);
    phase ^= 1;
    for (int j = 0; j < BK; ++j)
      for (int i = 0; i < 4; ++i) sum[i] += sA[(row + 8 * i) * BK + j] * sB[j * BN + col];
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    if (blockIdx.y * BM + row + 8 * i < problem.M) C[(size_t)(blockIdx.y * BM + row + 8 * i) * problem.N + blockIdx.x * BN + col] = sum[i];
}

static CUtensorMap encode(float* base, uint64_t width, uint64_t height, uint32_t box_x, uint32_t box_y)
{
  CUtensorMap map{};
  uint64_t dims[2] = {width, height}, strides[1] = {width * sizeof(float)};
  uint32_t box[2] = {box_x, box_y}, ones[2] = {1, 1};
  cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, base, dims, strides, box, ones,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

void launch(float* A, float* B, float* C, int M, int N, int K)
{
  Problem host;
  host.a = encode(A, K, M, BK, BM);
  host.b = encode(B, N, K, BN, BK);
  host.K = K;
  host.N = N;
  host.M = M;
  cudaMemcpyToSymbol(problem, &host, sizeof(Problem));
  product<<<dim3(N / BN, M / BM), 256>>>(C);
}
