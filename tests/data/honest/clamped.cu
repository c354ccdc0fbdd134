// Threads outside read the last row and column, and write nothing
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
    const float *a = A + (Index)min(row, M - 1) * lda, *b = B + min(col, N - 1);
    float sum = 0.f;
#pragma unroll 4
    for (int k = 0; k < K; ++k) sum = __fmaf_rn(a[k], b[(Index)k * ldb], sum);
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
