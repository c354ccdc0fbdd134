// Product of A and B^T: two stages by TMA, one warpgroup

#include "hopper.cuh"

PRODUCT_64X64(mma64, "bf16.bf16")
extern "C" __global__ void __launch_bounds__(128) k(const __grid_constant__ CUtensorMap ta,
                                                    const __grid_constant__ CUtensorMap tb,
                                                    float* C, int N, int K) {
    extern __shared__ __align__(1024) uint8_t smem[];
    uint16_t* sA = (uint16_t*)smem;
    uint16_t* sB = sA + 2 * 64 * 64;
    __shared__ uint64_t full[2];
    int m0 = blockIdx.y * 64, n0 = blockIdx.x * 64, t = threadIdx.x;
    if (t == 0) {
        Barrier::init(full, 1);
        Barrier::init(full + 1, 1);
        fence_barrier_init();
    }
    __syncthreads();
    float d[32];
    int steps = (K + 63) / 64;
    auto issue = [&](int s) {
        Barrier::arrive_tx(full + s % 2, 2 * 64 * 64 * 2);
        tma_load_2d(&ta, full + s % 2, sA + s % 2 * 4096, s * 64, m0);
        tma_load_2d(&tb, full + s % 2, sB + s % 2 * 4096, s * 64, n0);
    };
    if (t == 0) issue(0);
    for (int s = 0; s < steps; ++s) {
        if (t == 0 && s + 1 < steps) issue(s + 1);
        Barrier::wait(full + s % 2, s / 2 & 1);
        wg_arrive();
#pragma unroll
        for (int kk = 0; kk < 4; ++kk)
            mma64(d, desc<1, 1024, 1>(sA + s % 2 * 4096 + kk * 16),
                  desc<1, 1024, 1>(sB + s % 2 * 4096 + kk * 16), s || kk);
        wg_commit();
        wg_wait<0>();
        __syncthreads();
    }
    int r = m0 + t / 32 * 16 + t % 32 / 4, c = n0 + t % 4 * 2;
    for (int j = 0; j < 8; ++j) {
        if (c + 8 * j < N) {
            C[r * N + c + 8 * j] = d[4 * j];
            C[(r + 8) * N + c + 8 * j] = d[4 * j + 2];
        }
        if (c + 8 * j + 1 < N) {
            C[r * N + c + 8 * j + 1] = d[4 * j + 1];
            C[(r + 8) * N + c + 8 * j + 1] = d[4 * j + 3];
        }
    }
}
