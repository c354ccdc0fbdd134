// Blocks are renumbered in groups of rows, so that neighbours share tiles
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// 
// [params]
// GROUP = [4, 8]
// ///
#include "gemm.cuh"

MATMUL()
{
    int tile = blockIdx.y * gridDim.x + blockIdx.x, wide = GROUP * gridDim.x, first = tile / wide * GROUP;
    int rows = min((int)gridDim.y - first, GROUP), y = first + tile % wide % rows, x = tile % wide / rows;
    int row = y * 16 + threadIdx.y, col = x * 16 + threadIdx.x;
    float sum = 0.f;
    for (int k = 0; k < K; ++k) sum += at(A, row, k, M, K, lda) * at(B, k, col, K, N, ldb);
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
