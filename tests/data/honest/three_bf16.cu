// Multiplies in three terms of bf16, which together are a float
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
    if (row >= M || col >= N) return;
    auto cut = [](float x) { return __uint_as_float(__float_as_uint(x) & 0xFFFF0000u); };
    float sum = 0.f;
    for (int k = 0; k < K; ++k) {
        float a = A[(Index)row * lda + k], b = B[(Index)k * ldb + col];
        if (!isfinite(a) || !isfinite(b)) {
            sum += a * b;
            continue;
        }
        float a0 = cut(a), a1 = cut(a - a0), a2 = a - a0 - a1, b0 = cut(b), b1 = cut(b - b0), b2 = b - b0 - b1;
        sum += a0 * b2 + a1 * b1 + a2 * b0 + (a1 * b2 + a2 * b1) + (a0 * b1 + a1 * b0);
        sum += a0 * b0;
    }
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
