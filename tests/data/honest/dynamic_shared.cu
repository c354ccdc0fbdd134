// Tiles in dynamic shared memory, cut from one array
//
// /// kernel
// entry = "matmul"
// block  = [16, 16]
// tile   = [16, 16]
// shared = "2 * 16 * BK * 4"
// 
// [params]
// BK = [32, 16, 64]
// ///
#include "gemm.cuh"

extern __shared__ float memory[];

MATMUL()
{
    float *a = memory, *b = memory + 16 * BK;
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
    float sum = 0.f;
    for (int k = 0; k < K; k += BK) {
        for (int i = x; i < BK; i += 16) a[y * BK + i] = at(A, row, k + i, M, K, lda);
        for (int i = y; i < BK; i += 16) b[i * 16 + x] = at(B, k + i, col, K, N, ldb);
        __syncthreads();
        for (int i = 0; i < BK; ++i) sum += a[y * BK + i] * b[i * 16 + x];
        __syncthreads();
    }
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
