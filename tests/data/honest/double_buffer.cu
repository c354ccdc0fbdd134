// Loads the next tile while it multiplies this one
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// ///
#include "gemm.cuh"

MATMUL()
{
    __shared__ float a[2][16][16], b[2][16][16];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x, now = 0;
    float sum = 0.f;
    a[0][y][x] = at(A, row, x, M, K, lda);
    b[0][y][x] = at(B, y, col, K, N, ldb);
    __syncthreads();
    for (int k = 16; k < K + 16; k += 16) {
        float next_a = at(A, row, k + x, M, K, lda), next_b = at(B, k + y, col, K, N, ldb);
        for (int i = 0; i < 16; ++i) sum += a[now][y][i] * b[now][i][x];
        now ^= 1;
        a[now][y][x] = next_a;
        b[now][y][x] = next_b;
        __syncthreads();
    }
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
