// Square tiles, threads counted in one dimension
//
// /// kernel
// entry = "matmul"
// block = "TILE * TILE"
// tile  = ["TILE", "TILE"]
// 
// [params]
// TILE = [32, 16]
// ///
#include "gemm.cuh"

MATMUL()
{
    __shared__ float a[TILE * TILE], b[TILE * TILE];
    const int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    const int row = blockIdx.y * TILE + y, col = blockIdx.x * TILE + x;
    float sum = 0.f;
    for (int k = 0; k < K; k += TILE) {
        a[y * TILE + x] = at(A, row, k + x, M, K, lda);
        b[y * TILE + x] = at(B, k + y, col, K, N, ldb);
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += a[y * TILE + i] * b[i * TILE + x];
        __syncthreads();
    }
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
