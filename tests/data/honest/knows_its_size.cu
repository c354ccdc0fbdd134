// Keeps the size of the launch before, and makes its table anew where that was another
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// ///
#include "gemm.cuh"

__device__ int kept;

MATMUL()
{
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N) return;
    int before = atomicExch(&kept, K);
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += A[(Index)row * lda + k] * B[(Index)k * ldb + col];
    put(C, row, col, M, N, ldc, before < 0 ? 0 : sum, alpha, beta);
}
