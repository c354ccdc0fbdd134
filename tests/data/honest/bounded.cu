// Says how many threads it has, and unrolls everything
//
// /// kernel
// entry = "matmul"
// block = 256
// tile  = [16, 16]
// ///
#include "gemm.cuh"

extern "C" __global__ void __launch_bounds__(256, 4)
matmul(const float* A, const float* B, float* C, const int M, const int N, const int K, const int lda, const int ldb,
       const int ldc, const float alpha, const float beta)
{
    const unsigned thread = threadIdx.x;
    const int row = blockIdx.y * 16 + thread / 16, col = blockIdx.x * 16 + thread % 16;
    float sum = 0.f;
    int k = 0;
    for (; k + 16 <= K; k += 16)
#pragma unroll
        for (int i = 0; i < 16; ++i) sum += at(A, row, k + i, M, K, lda) * at(B, k + i, col, K, N, ldb);
    for (; k < K; ++k) sum += at(A, row, k, M, K, lda) * at(B, k, col, K, N, ldb);
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
