// Has an assertion, which traps
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
    if (lda < K || ldb < N || ldc < N) __trap();
    float sum = 0.f;
    for (int k = 0; k < K; ++k) sum += at(A, row, k, M, K, lda) * at(B, k, col, K, N, ldb);
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
