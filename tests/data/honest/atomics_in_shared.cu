// Groups of threads share k within a block, and add up by atomics in shared memory
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [4, 16]
// ///
#include "gemm.cuh"

MATMUL()
{
    __shared__ float total[4][16];
    int x = threadIdx.x, y = threadIdx.y % 4, z = threadIdx.y / 4, row = blockIdx.y * 4 + y, col = blockIdx.x * 16 + x;
    if (z == 0) total[y][x] = 0.f;
    __syncthreads();
    float sum = 0.f;
    for (int k = z; k < K; k += 4) sum += at(A, row, k, M, K, lda) * at(B, k, col, K, N, ldb);
    atomicAdd(&total[y][x], sum);
    __syncthreads();
    if (z == 0) put(C, row, col, M, N, ldc, total[y][x], alpha, beta);
}
