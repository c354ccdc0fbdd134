// Sums of 8 products, which are added up in pairs as the bits of a counter carry
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
    float sums[16];
    int depth = 0;
    for (int k = 0, n = 1; k < K; k += 8, ++n) {
        float sum = 0.f;
        for (int i = k; i < min(K, k + 8); ++i) sum += at(A, row, i, M, K, lda) * at(B, i, col, K, N, ldb);
        for (int left = n; !(left & 1); left >>= 1) sum += sums[--depth];
        sums[depth++] = sum;
    }
    float whole = 0.f;
    while (depth) whole += sums[--depth];
    put(C, row, col, M, N, ldc, whole, alpha, beta);
}
