// Has a loop of its own for GPUs that copy to shared memory asynchronously
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// ///
#include "gemm.cuh"

MATMUL()
{
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.f;
#if __CUDA_ARCH__ >= 800
#pragma unroll 4
#endif
    for (int k = 0; k < K; ++k) sum += at(A, row, k, M, K, lda) * at(B, k, col, K, N, ldb);
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
