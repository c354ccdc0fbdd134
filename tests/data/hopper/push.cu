// Blocks of a cluster send what they have got to the next one, by bulk copies

#include "hopper.cuh"

extern "C" __global__ void __cluster_dims__(3, 1, 1) k(const float* in, float* out) {
    __shared__ __align__(16) float box[2][64];
    __shared__ uint64_t got;
    const int t = threadIdx.x;
    const uint32_t me = cluster_ctarank();
    uint32_t size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    const uint32_t next = me + 1 == size ? 0 : me + 1, prev = me ? me - 1 : size - 1;
    if (t == 0) {
        Barrier::init(&got, 1);
        fence_barrier_init();
    }
    box[0][t] = in[me * 64 + t];
    float sum = box[0][t];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    for (int s = 0; s < 2; ++s) {
        if (t == 0) Barrier::arrive_tx(&got, 256);
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
        if (t == 0) {
            uint32_t dst, bar;
            asm("mapa.shared::cluster.u32 %0, %1, %2;"
                : "=r"(dst)
                : "r"(smem_u32(box[~s & 1])), "r"(next));
            asm("mapa.shared::cluster.u32 %0, %1, %2;"
                : "=r"(bar)
                : "r"(smem_u32(&got)), "r"(next));
            asm volatile(
                "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], "
                "[%1], %2, [%3];" ::"r"(dst),
                "r"(smem_u32(box[s & 1])), "r"(256), "r"(bar)
                : "memory");
        }
        Barrier::wait(&got, s);
        sum += box[~s & 1][t];
    }
    out[me * 64 + t] = sum;
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
