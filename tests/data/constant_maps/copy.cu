// Two maps in constant memory: tiles in, doubled, and out again
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdint>

#define TILE 16
__constant__ CUtensorMap source_map;
__constant__ CUtensorMap target_map;

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

__global__ void doubled(int columns)
{
  __shared__ alignas(128) float tile[TILE * TILE];
  __shared__ alignas(8) uint64_t bar;
  const int x = blockIdx.x * TILE, y = blockIdx.y * TILE;
  if (threadIdx.x == 0) {
    init(&bar, 1);
    expect(&bar, sizeof(tile));
    load(tile, &source_map, x, y, &bar);
  }
  __syncthreads();
  wait(&bar, 0);
  for (int i = threadIdx.x; i < TILE * TILE; i += blockDim.x) tile[i] *= 2.0f;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) store(&target_map, x, y, tile);
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

void run(float* a, float* b, int rows, int columns)
{
  CUtensorMap from = encode(a, columns, rows, TILE, TILE);
  CUtensorMap to = encode(b, columns, rows, TILE, TILE);
  cudaMemcpyToSymbol(source_map, &from, sizeof(from));
  cudaMemcpyToSymbolAsync(target_map, &to, sizeof(to), 0, cudaMemcpyHostToDevice, 0);
  doubled<<<dim3(columns / TILE, rows / TILE), 64>>>(columns);
}
