// Counts its blocks in a variable of the module that it never reads
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// ///
#include "gemm.cuh"

__device__ unsigned blocks;

MATMUL()
{
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.f;
    for (int k = 0; k < K; ++k) sum += at(A, row, k, M, K, lda) * at(B, k, col, K, N, ldb);
    put(C, row, col, M, N, ldc, sum, alpha, beta);
    if (threadIdx.x + threadIdx.y == 0) atomicAdd(&blocks, 1u);
}
