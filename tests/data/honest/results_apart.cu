// Each thread has results that lie a block apart
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [32, 64]
// ///
#include "gemm.cuh"

MATMUL()
{
    int row = blockIdx.y * 32 + threadIdx.y, col = blockIdx.x * 64 + threadIdx.x;
    float sum[2][4] = {};
    for (int k = 0; k < K; ++k)
        for (int s = 0; s < 2; ++s) {
            float a = at(A, row + 16 * s, k, M, K, lda);
            for (int t = 0; t < 4; ++t) sum[s][t] += a * at(B, k, col + 16 * t, K, N, ldb);
        }
    for (int s = 0; s < 2; ++s)
        for (int t = 0; t < 4; ++t) put(C, row + 16 * s, col + 16 * t, M, N, ldc, sum[s][t], alpha, beta);
}
