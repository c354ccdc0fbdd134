// A warp adds up one element, and reduces by shuffles
//
// /// kernel
// entry = "matmul"
// block = [32, 8]
// tile  = [8, 1]
// ///
#include "gemm.cuh"

MATMUL()
{
    int row = blockIdx.y * 8 + threadIdx.y, col = blockIdx.x;
    float sum = 0.f;
    for (int k = threadIdx.x; k < K; k += 32) sum += at(A, row, k, M, K, lda) * B[(Index)k * ldb + col];
    for (int offset = 16; offset; offset /= 2) sum += __shfl_down_sync(0xFFFFFFFFu, sum, offset);
    if (threadIdx.x == 0) put(C, row, col, M, N, ldc, sum, alpha, beta);
}
