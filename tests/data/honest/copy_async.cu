// Copies tiles to shared memory by cp.async, some steps ahead
//
// /// kernel
// entry = "matmul"
// min_arch = "sm_80"
// block = [16, 16]
// tile  = [16, 16]
// 
// [params]
// STAGES = [3, 2]
// ///
#include "gemm.cuh"

__device__ __forceinline__ void copy(float* to, const float* from, bool inside)
{
    unsigned address = __cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(inside ? 4 : 0));
}

MATMUL()
{
    __shared__ float a[STAGES][16][16], b[STAGES][16][16];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
    int steps = (K + 15) / 16;
    auto fetch = [&](int step) {
        if (step < steps) {
            int s = step % STAGES, k = step * 16;
            bool in_a = row < M && k + x < K, in_b = k + y < K && col < N;
            copy(&a[s][y][x], in_a ? A + (Index)row * lda + k + x : A, in_a);
            copy(&b[s][y][x], in_b ? B + (Index)(k + y) * ldb + col : B, in_b);
        }
        asm volatile("cp.async.commit_group;");
    };
    for (int step = 0; step < STAGES - 1; ++step) fetch(step);
    float sum = 0.f;
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        fetch(step + STAGES - 1);
        for (int i = 0; i < 16; ++i) sum += a[step % STAGES][y][i] * b[step % STAGES][i][x];
    }
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
