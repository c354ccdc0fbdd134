// Keeps a piece of a row of A in registers for many columns
//
// /// kernel
// entry = "matmul"
// block = 64
// tile  = [1, 64]
// loads = 65
// ///
#include "gemm.cuh"

MATMUL()
{
    int row = blockIdx.y, col = blockIdx.x * 64 + threadIdx.x;
    float sum = 0.f;
    for (int k = 0; k < K; k += 8) {
        float a[8];
        for (int i = 0; i < 8; ++i) a[i] = at(A, row, k + i, M, K, lda);
        for (int i = 0; i < 8; ++i) sum += a[i] * at(B, k + i, col, K, N, ldb);
    }
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
