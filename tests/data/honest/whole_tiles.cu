// Without any bounds: sizes are multiples of its tiles, beta is 0
//
// /// kernel
// entry = "matmul"
// block = [32, 8]
// tile  = [32, 32]
// requires = ["M % 32 == 0", "N % 32 == 0", "K % 32 == 0", "beta == 0"]
// ///
#include "gemm.cuh"

MATMUL()
{
    __shared__ float a[32][32], b[32][32];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 32, col = blockIdx.x * 32 + x;
    float sum[4] = {};
    for (int k = 0; k < K; k += 32) {
        for (int i = y; i < 32; i += 8) {
            a[i][x] = A[(Index)(row + i) * lda + k + x];
            b[i][x] = B[(Index)(k + i) * ldb + col];
        }
        __syncthreads();
        for (int i = 0; i < 32; ++i)
            for (int t = 0; t < 4; ++t) sum[t] += a[y + 8 * t][i] * b[i][x];
        __syncthreads();
    }
    for (int t = 0; t < 4; ++t) C[(Index)(row + y + 8 * t) * ldc + col] = alpha * sum[t];
}
