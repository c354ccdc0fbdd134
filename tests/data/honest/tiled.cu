// Square tiles in shared memory
//
// /// kernel
// entry = "matmul"
// block = ["TILE", "TILE"]
// tile  = ["TILE", "TILE"]
// 
// [params]
// TILE = [16, 8, 32]
// ///
#include "gemm.cuh"

MATMUL()
{
    __shared__ float a[TILE][TILE], b[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, col = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
    float sum = 0.f;
    for (int k = 0; k < K; k += TILE) {
        a[y][x] = at(A, row, k + x, M, K, lda);
        b[y][x] = at(B, k + y, col, K, N, ldb);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; ++i) sum += a[y][i] * b[i][x];
        __syncthreads();
    }
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
