// Each thread has several results below each other
//
// /// kernel
// entry = "matmul"
// block = "BM * BN // TM"
// tile  = ["BM", "BN"]
// 
// [params]
// BM = 32
// BN = 32
// BK = 8
// TM = [4, 8]
// ///
#include "gemm.cuh"

MATMUL()
{
    __shared__ float a[BM][BK], b[BK][BN];
    const int threads = BM * BN / TM, x = threadIdx.x % BN, y = threadIdx.x / BN * TM;
    const int row = blockIdx.y * BM, col = blockIdx.x * BN;
    float sum[TM] = {};
    for (int k = 0; k < K; k += BK) {
        for (int i = threadIdx.x; i < BM * BK; i += threads)
            a[i / BK][i % BK] = at(A, row + i / BK, k + i % BK, M, K, lda);
        for (int i = threadIdx.x; i < BK * BN; i += threads)
            b[i / BN][i % BN] = at(B, k + i / BN, col + i % BN, K, N, ldb);
        __syncthreads();
        for (int i = 0; i < BK; ++i) {
            float other = b[i][x];
            for (int t = 0; t < TM; ++t) sum[t] += a[y + t][i] * other;
        }
        __syncthreads();
    }
    for (int t = 0; t < TM; ++t) put(C, row + y + t, col + x, M, N, ldc, sum[t], alpha, beta);
}
