// Split sums: every block adds its tile to the result by a reducing TMA store; maps in a struct of parameters
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>

constexpr int TILE_X = 32, TILE_Y = 16;

struct Params {
  CUtensorMap in;
  CUtensorMap out;
  const float* scale;
  int splits;
};

__device__ uint32_t saddr(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__global__ void __launch_bounds__(128) split_sum(const __grid_constant__ Params params)
{
  __shared__ alignas(128) float tile[TILE_Y][TILE_X];
  __shared__ alignas(8) uint64_t bar;
  const int x = blockIdx.x * TILE_X, y = blockIdx.y * TILE_Y;
  if (threadIdx.x == 0) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&params.in) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(saddr(&bar)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(saddr(&bar)), "r"((uint32_t)sizeof(tile)) : "memory");
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
        ::"r"(saddr(tile)), "l"(&params.in), "r"(x), "r"(y), "r"((int)blockIdx.z), "r"(saddr(&bar)) : "memory");
  }
  __syncthreads();
  asm volatile(
      "{\n.reg .pred p;\nW:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n@!p bra W;\n}" ::"r"(saddr(&bar)) : "memory");
  const float factor = params.scale[blockIdx.z];
  for (int i = threadIdx.x; i < TILE_X * TILE_Y; i += blockDim.x) tile[i / TILE_X][i % TILE_X] *= factor;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];"
        ::"l"(&params.out), "r"(x), "r"(y), "r"(saddr(tile)) : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

template <int RANK>
CUtensorMap encode(float* base, const uint64_t (&dims)[RANK], const uint32_t (&box)[RANK])
{
  CUtensorMap map{};
  uint64_t strides[RANK];
  uint32_t ones[RANK];
  uint64_t bytes = sizeof(float);
  for (int i = 0; i < RANK; ++i) {
    bytes *= dims[i];
    strides[i] = bytes;
    ones[i] = 1;
  }
  cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, RANK, base, dims, strides, box, ones,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

int main()
{
  const uint64_t width = 256, height = 128, splits = 4;
  float *in, *out, *scale;
  cudaMalloc(&in, width * height * splits * sizeof(float));
  cudaMalloc(&out, width * height * sizeof(float));
  cudaMalloc(&scale, splits * sizeof(float));
  cudaMemset(out, 0, width * height * sizeof(float));
  Params params;
  params.in = encode<3>(in, {width, height, splits}, {TILE_X, TILE_Y, 1});
  params.out = encode<2>(out, {width, height}, {TILE_X, TILE_Y});
  params.scale = scale;
  params.splits = splits;
  split_sum<<<dim3(width / TILE_X, height / TILE_Y, splits), 128>>>(params);
  printf("%d\n", cudaDeviceSynchronize());
}
