// Columns of shared memory are exchanged by exclusive or, against bank conflicts
//
// /// kernel
// entry = "matmul"
// block = ["BN // TN", "BM // TM"]
// tile  = ["BM", "BN"]
// 
// [params]
// BM = 32
// BN = 32
// BK = 8
// TM = 4
// TN = 4
// ///
#include "gemm.cuh"

MATMUL()
{
    __shared__ float a[BK][BM], b[BK][BN];
    const int threads = BM / TM * (BN / TN), thread = threadIdx.y * (BN / TN) + threadIdx.x;
    const int row = blockIdx.y * BM, col = blockIdx.x * BN;
    float sum[TM][TN] = {};
    for (int k = 0; k < K; k += BK) {
        for (int i = thread; i < BM * BK; i += threads)
            a[i % BK][i / BK ^ (i % BK) * 4] = at(A, row + i / BK, k + i % BK, M, K, lda);
        for (int i = thread; i < BK * BN; i += threads)
            b[i / BN][i % BN] = at(B, k + i / BN, col + i % BN, K, N, ldb);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            float x[TM], y[TN];
            for (int t = 0; t < TM; ++t) x[t] = a[i][(threadIdx.y * TM + t) ^ i * 4];
            for (int t = 0; t < TN; ++t) y[t] = b[i][threadIdx.x * TN + t];
            for (int s = 0; s < TM; ++s)
                for (int t = 0; t < TN; ++t) sum[s][t] += x[s] * y[t];
        }
        __syncthreads();
    }
    for (int s = 0; s < TM; ++s)
        for (int t = 0; t < TN; ++t)
            put(C, row + threadIdx.y * TM + s, col + threadIdx.x * TN + t, M, N, ldc, sum[s][t], alpha, beta);
}
