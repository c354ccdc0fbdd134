// Leaves out a step of k where the block's part of A is zero, NaN and infinity aside
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// ///
#include "gemm.cuh"

MATMUL()
{
    __shared__ float a[16][16], b[16][16];
    __shared__ int some;
    int x = threadIdx.x, y = threadIdx.y, col = blockIdx.x * 16 + x, row = blockIdx.y * 16 + y;
    float sum = 0.f;
    for (int k = 0; k < K; k += 16) {
        if (x + y == 0) some = 0;
        __syncthreads();
        a[y][x] = at(A, row, k + x, M, K, lda);
        b[y][x] = at(B, k + y, col, K, N, ldb);
        if (a[y][x] != 0 || !isfinite(b[y][x])) atomicOr(&some, 1);
        __syncthreads();
        if (some)
            for (int i = 0; i < 16; ++i) sum += a[y][i] * b[i][x];
        __syncthreads();
    }
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
