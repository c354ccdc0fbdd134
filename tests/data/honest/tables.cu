// Reads the order of its steps from constants of the module
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// ///
#include "gemm.cuh"

__constant__ int order[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};
__device__ const float one[4] = {1.f, 1.f, 1.f, 1.f};

MATMUL()
{
    __shared__ float a[16][16], b[16][16];
    int x = threadIdx.x, y = threadIdx.y, col = blockIdx.x * 16 + x, row = blockIdx.y * 16 + y;
    float sum = 0.f;
    for (int k = 0; k < K; k += 16) {
        a[y][x] = at(A, row, k + x, M, K, lda);
        b[y][x] = at(B, k + y, col, K, N, ldb);
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum += a[y][order[i]] * b[order[i]][x] * one[i % 4];
        __syncthreads();
    }
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
