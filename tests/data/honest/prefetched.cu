// Prefetches the next rows of B into L2
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// ///
#include "gemm.cuh"

MATMUL()
{
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.f;
    for (int k = 0; k < K; ++k) {
        if (k + 8 < K && col < N) asm volatile("prefetch.global.L2 [%0];" ::"l"(B + (Index)(k + 8) * ldb + col));
        sum += at(A, row, k, M, K, lda) * at(B, k, col, K, N, ldb);
    }
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
