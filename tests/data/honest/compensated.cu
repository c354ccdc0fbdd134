// Sums with their rounding errors, of which each product has one, too
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
    float sum = 0.f, error = 0.f;
    for (int k = 0; k < K; ++k) {
        float a = at(A, row, k, M, K, lda), b = at(B, k, col, K, N, ldb);
        float p = __fmul_rn(a, b), rest = __fmaf_rn(a, b, -p);
        float next = __fadd_rn(sum, p), part = __fsub_rn(next, sum);
        error += (sum - (next - part)) + (p - part) + rest;
        sum = next;
    }
    put(C, row, col, M, N, ldc, isfinite(sum + error) ? sum + error : sum, alpha, beta);
}
