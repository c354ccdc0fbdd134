// A grouped product: each block takes the map of its expert, from offsets of tokens
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdint>

constexpr int BM = 16, BK = 32, EXPERTS = 4;

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

__global__ void expert_sums(const __grid_constant__ CUtensorMap tokens, const CUtensorMap* __restrict__ weights,
                            const int* __restrict__ expert_of, float* __restrict__ out, int rows, int K)
{
  __shared__ alignas(128) float sX[BM * BK];
  __shared__ alignas(128) float sW[BK];
  __shared__ alignas(8) uint64_t bar;
  if (threadIdx.x == 0) init(&bar, 1);
  __syncthreads();
  const int expert = expert_of[blockIdx.x];
  float sum = 0;
  uint32_t phase = 0;
  for (int k = 0; k < K; k += BK) {
    if (threadIdx.x == 0) {
      expect(&bar, sizeof(sX) + sizeof(sW));
      load(sX, &tokens, k, blockIdx.x * BM, &bar);
      load(sW, weights + expert, k, 0, &bar);
    }
    wait(&bar, phase);
    phase ^= 1;
    if (threadIdx.x < BM)
      for (int j = 0; j < BK; ++j) sum += sX[threadIdx.x * BK + j] * sW[j];
    __syncthreads();
  }
  const int row = blockIdx.x * BM + threadIdx.x;
  if (threadIdx.x < BM && row < rows) out[row] = sum;
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

void run(float* x, float* w, const int* expert_of, float* out, int rows, int K)
{
  CUtensorMap tokens = encode(x, K, rows, BK, BM), weights[EXPERTS], *on_device;
  for (int e = 0; e < EXPERTS; ++e) weights[e] = encode(w + e * K, K, 1, BK, 1);
  cudaMalloc(&on_device, sizeof(weights));
  cudaMemcpy(on_device, weights, sizeof(weights), cudaMemcpyHostToDevice);
  expert_sums<<<(rows + BM - 1) / BM, 64>>>(tokens, on_device, expert_of, out, rows, K);
}
