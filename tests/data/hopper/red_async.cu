// Sums of a cluster of 2 x 2 blocks in the first one, by red.async

#include "hopper.cuh"

extern "C" __global__ void __cluster_dims__(2, 2, 1) k(const int* in, int* out) {
    __shared__ int acc[32];
    __shared__ uint64_t bar;
    const int t = threadIdx.x;
    const uint32_t me = cluster_ctarank();
    acc[t] = 0;
    if (t == 0 && me == 0) {
        Barrier::init(&bar, 1);
        fence_barrier_init();
        Barrier::arrive_tx(&bar, 4 * 32 * 4);
    }
    cl_arrive();
    cl_wait();
    uint32_t dst, rb;
    asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(dst) : "r"(smem_u32(acc + t)));
    asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(rb) : "r"(smem_u32(&bar)));
    asm volatile(
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.s32 [%0], %1, "
        "[%2];" ::"r"(dst),
        "r"(in[(blockIdx.y * 2 + blockIdx.x) * 32 + t]), "r"(rb)
        : "memory");
    if (me == 0) {
        Barrier::wait(&bar, 0);
        out[t] = acc[t];
    }
}
