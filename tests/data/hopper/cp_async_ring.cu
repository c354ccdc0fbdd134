// A ring of three stages that one warp fills by cp.async, whose copies arrive at mbarriers

#include "hopper.cuh"

extern "C" __global__ void k(const float* in, float* out, int n) {
    __shared__ float4 buf[3][32];
    __shared__ uint64_t full[3], empty[3];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (threadIdx.x == 0)
        for (int i = 0; i < 3; ++i) {
            Barrier::init(full + i, 32);
            Barrier::init(empty + i, 32);
        }
    __syncthreads();
    if (warp == 0) {
        for (int i = 0; i < n; ++i) {
            const int s = i % 3;
            if (i >= 3) Barrier::wait(empty + s, (i / 3 - 1) & 1);
            asm volatile(
                "cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(smem_u32(&buf[s][lane])),
                "l"((const float4*)in + i * 32 + lane)
                : "memory");
            asm volatile(
                "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_u32(full + s))
                : "memory");
        }
        asm volatile("cp.async.wait_all;");
    } else {
        float4 acc = {};
        for (int i = 0; i < n; ++i) {
            const int s = i % 3;
            Barrier::wait(full + s, i / 3 & 1);
            float4 v = buf[s][31 - lane];
            acc.x += v.x;
            acc.y += v.y;
            acc.z += v.z;
            acc.w += v.w;
            Barrier::arrive(empty + s);
        }
        ((float4*)out)[lane] = acc;
    }
}
