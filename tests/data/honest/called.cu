// Has a function that is not inlined
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// ///
#include "gemm.cuh"

__device__ __noinline__ float dot(const float* a, const float* b, int n, int step)
{
    float sum = 0.f;
    for (int k = 0; k < n; ++k) sum += a[k] * b[(Index)k * step];
    return sum;
}

MATMUL()
{
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N) return;
    put(C, row, col, M, N, ldc, dot(A + (Index)row * lda, B + col, K, ldb), alpha, beta);
}
