// Groups of threads share k within a block, and add up in shared memory
//
// /// kernel
// entry = "matmul"
// block = [16, 4, 4]
// tile  = [4, 16]
// ///
#include "gemm.cuh"

MATMUL()
{
    __shared__ float part[4][4][16];
    int x = threadIdx.x, y = threadIdx.y, z = threadIdx.z, row = blockIdx.y * 4 + y, col = blockIdx.x * 16 + x;
    float sum = 0.f;
    for (int k = z; k < K; k += 4) sum += at(A, row, k, M, K, lda) * at(B, k, col, K, N, ldb);
    part[z][y][x] = sum;
    __syncthreads();
    if (z == 0) put(C, row, col, M, N, ldc, part[0][y][x] + part[1][y][x] + (part[2][y][x] + part[3][y][x]), alpha, beta);
}
