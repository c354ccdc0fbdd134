// Chooses between policies of L2, none of which outlives the launch
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// ///
#include "gemm.cuh"

MATMUL()
{
    unsigned long long policy, normal = 0x1000000000000000;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    policy = N > 64 ? normal : policy;
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N) return;
    float sum = 0, a;
    for (int k = 0; k < K; ++k) {
        asm("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(a) : "l"(A + (Index)row * lda + k), "l"(policy));
        sum += a * B[(Index)k * ldb + col];
    }
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
