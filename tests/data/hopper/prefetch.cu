// A ring of three stages that is filled two steps ahead

#include "hopper.cuh"

extern "C" __global__ void k(const float* in, float* out, int n) {
    __shared__ __align__(16) float s[3][32];
    __shared__ uint64_t full[3];
    const int t = threadIdx.x;
    if (t == 0) {
        for (int i = 0; i < 3; ++i) Barrier::init(full + i, 1);
        fence_barrier_init();
    }
    __syncwarp();
    auto go = [&](int i) {
        Barrier::arrive_tx(full + i % 3, 128);
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, "
            "[%2];" ::"r"(smem_u32(s[i % 3])),
            "l"(in + 32 * i), "r"(smem_u32(full + i % 3))
            : "memory");
    };
    if (t == 0) {
        go(0);
        go(1);
    }
    for (int i = 0; i < n; ++i) {
        if (t == 0 && i + 2 < n) go(i + 2);
        Barrier::wait(full + i % 3, i / 3 & 1);
        out[32 * i + t] = s[i % 3][t];
        fence_view_async_shared();
        __syncwarp();
    }
}
