// Each block of a cluster sends its part to all by st.async, and adds up what it has got

#include "hopper.cuh"

extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const float* in, float* out) {
    __shared__ __align__(16) float got[4][64];
    __shared__ uint64_t bar;
    const int t = threadIdx.x;
    const uint32_t me = cluster_ctarank();
    if (t == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(smem_u32(&bar)));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile(
            "{ .reg .b64 st; mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 st, [%0], %1; "
            "}" ::"r"(smem_u32(&bar)),
            "r"(4 * 64 * 4)
            : "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
    const float v = in[me * 64 + t];
    for (int r = 0; r < 4; ++r) {
        uint32_t dst, rb;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                     : "=r"(dst)
                     : "r"(smem_u32(&got[me][t])), "r"(r));
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                     : "=r"(rb)
                     : "r"(smem_u32(&bar)), "r"(r));
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                dst),
            "f"(v), "r"(rb)
            : "memory");
    }
    uint32_t done = 0;
    while (!done)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2, "
            "%3; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(smem_u32(&bar)), "r"(0), "r"(100000)
            : "memory");
    float s = 0;
    for (int r = 0; r < 4; ++r) s += got[r][t];
    out[me * 64 + t] = s;
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
