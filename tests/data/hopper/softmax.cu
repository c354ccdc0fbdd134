// Softmax of rows that the blocks of a cluster share, by addresses of mapa

#include "hopper.cuh"

extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const float* x, float* y) {
    __shared__ __align__(16) float part[4];
    __shared__ __align__(16) float sums[4];
    const int t = threadIdx.x;
    uint32_t me, cid, n;
    asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(me));
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(cid));
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
    const int at = (cid * n + me) * 128 + t;
    float v = x[at], m = v;
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    if (t % 32 == 0) part[t / 32] = m;
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
    for (uint32_t r = 0; r < n; ++r) {
        uint32_t p;
        float4 q;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(p) : "r"(smem_u32(part)), "r"(r));
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(q.x), "=f"(q.y), "=f"(q.z), "=f"(q.w)
                     : "r"(p));
        m = fmaxf(m, fmaxf(fmaxf(q.x, q.y), fmaxf(q.z, q.w)));
    }
    v = __expf(v - m);
    float s = v;
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    if (t % 32 == 0) {
        uint64_t g;
        for (uint32_t r = 0; r < n; ++r) {
            asm("mapa.u64 %0, %1, %2;"
                : "=l"(g)
                : "l"((uint64_t)(r == me ? &sums[0] : &sums[0])), "r"(r));
            if (t == 0) *(volatile float*)(g + 0) = 0;
        }
    }
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
    if (t % 32 == 0)
        for (uint32_t r = 0; r < n; ++r) {
            uint64_t g;
            asm("mapa.u64 %0, %1, %2;" : "=l"(g) : "l"((uint64_t)&sums[0]), "r"(r));
            atomicAdd((float*)g, s);
        }
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
    y[at] = v / sums[0];
}
