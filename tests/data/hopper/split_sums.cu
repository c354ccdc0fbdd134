// Sums of several blocks in one tile by a TMA reduction, and of all in a row

#include "hopper.cuh"

extern "C" __global__ void k(const float* in, const __grid_constant__ CUtensorMap out,
                             float* total) {
    __shared__ __align__(128) float tile[16][32];
    __shared__ __align__(16) float sums[32];
    int t = threadIdx.x;
    for (int i = t; i < 512; i += blockDim.x)
        tile[i / 32][i % 32] = in[(blockIdx.z * 2 + blockIdx.y) * 512 + i] * 2;
    __syncthreads();
    if (t < 32) {
        float s = 0;
        for (int i = 0; i < 16; ++i) s += tile[i][t];
        sums[t] = s;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (t == 0) {
        asm volatile(
            "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%2, %3}], "
            "[%1];" ::"l"(&out),
            "r"(smem_u32(tile)), "r"(0), "r"(blockIdx.y * 16)
            : "memory");
        asm volatile(
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 128;" ::"l"(
                total),
            "r"(smem_u32(sums))
            : "memory");
        tma_commit();
        tma_wait<0>();
    }
}
