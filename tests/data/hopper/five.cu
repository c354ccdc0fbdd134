// One box of a tensor of five extents; what is outside reads as NaN

#include "hopper.cuh"

extern "C" __global__ void k(const __grid_constant__ CUtensorMap in, float* out) {
    __shared__ __align__(128) float s[2 * 2 * 3 * 2 * 4];
    __shared__ uint64_t bar;
    if (threadIdx.x == 0) {
        Barrier::init(&bar, 1);
        fence_barrier_init();
        Barrier::arrive_tx(&bar, sizeof s);
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
            "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(smem_u32(s)),
            "l"(&in), "r"(smem_u32(&bar)), "r"(4), "r"(-1), "r"(1), "r"(1), "r"(0)
            : "memory");
    }
    __syncthreads();
    Barrier::wait(&bar, 0);
    for (int i = threadIdx.x; i < 96; i += blockDim.x) out[i] = s[i];
}
