// Product of A and B^T in clusters of two blocks, each of which brings half of B to both

#include "hopper.cuh"

PRODUCT_64X64(mma64, "bf16.bf16")
extern "C" __global__ void __cluster_dims__(1, 2, 1) __launch_bounds__(256, 1) k(
    const __grid_constant__ CUtensorMap ta, const __grid_constant__ CUtensorMap tb, float* C, int N,
    int K) {
    extern __shared__ __align__(1024) uint8_t smem[];
    constexpr int ST = 3;
    uint16_t* sA = (uint16_t*)smem;
    uint16_t* sB = sA + ST * 4096;
    __shared__ __align__(8) uint64_t full[ST], empty[ST];
    const int wgid = threadIdx.x / 128, t = threadIdx.x % 128;
    const uint32_t rank = cluster_ctarank();
    if (threadIdx.x == 0) {
        for (int i = 0; i < ST; ++i) {
            Barrier::init(full + i, 1);
            Barrier::init(empty + i, 2);
        }
        fence_barrier_init();
    }
    cl_arrive();
    cl_wait();
    const int m0 = blockIdx.y * 64, n0 = blockIdx.x * 64, steps = (K + 63) / 64;
    if (wgid == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(24));
        if (t == 0) {
            int q = 0, p = 0;
            for (int s = 0; s < steps; ++s, ++q) {
                if (q == ST) {
                    q = 0;
                    p ^= 1;
                }
                Barrier::wait(empty + q, p ^ 1);
                Barrier::arrive_tx(full + q, 2 * 8192);
                tma_load_2d(&ta, full + q, sA + q * 4096, s * 64, m0);
                // each block brings half of B to both
                tma_load_2d_mc(&tb, full + q, 3, sB + q * 4096 + rank * 2048, s * 64,
                               n0 + rank * 32);
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(240));
        float d[32];
        for (int i = 0; i < 32; ++i) d[i] = 0;
        int q = 0, p = 0;
        for (int s = 0; s < steps; ++s, ++q) {
            if (q == ST) {
                q = 0;
                p ^= 1;
            }
            Barrier::wait(full + q, p);
            wg_arrive();
#pragma unroll
            for (int kk = 0; kk < 4; ++kk)
                mma64(d, desc<1, 1024, 1>(sA + q * 4096 + kk * 16),
                      desc<1, 1024, 1>(sB + q * 4096 + kk * 16), 1);
            wg_commit();
            wg_wait<0>();
            if (t < 2) Barrier::arrive_remote(empty + q, t);
        }
        int r = m0 + t / 32 * 16 + t % 32 / 4, c = n0 + t % 4 * 2;
        for (int j = 0; j < 8; ++j)
            for (int i = 0; i < 4; ++i)
                if (c + 8 * j + i % 2 < N)
                    C[(r + i / 2 * 8) * N + c + 8 * j + i % 2] = d[4 * j + i];
    }
    cl_arrive();
    cl_wait();
}
