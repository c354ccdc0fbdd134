// Works on float2 where memory is aligned to it, and on floats where not
//
// /// kernel
// entry = "matmul"
// block = [8, 16]
// tile  = [16, 16]
// ///
#include "gemm.cuh"

MATMUL()
{
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + 2 * threadIdx.x;
    if (row >= M || col >= N) return;
    bool both = col + 1 < N, aligned = both && ldb % 2 == 0 && (size_t)B % 8 == 0;
    float2 sum = make_float2(0.f, 0.f);
    for (int k = 0; k < K; ++k) {
        const float* b = B + (Index)k * ldb + col;
        float2 v = aligned ? *(const float2*)b : make_float2(b[0], both ? b[1] : 0.f);
        float a = A[(Index)row * lda + k];
        sum.x += a * v.x;
        sum.y += a * v.y;
    }
    put(C, row, col, M, N, ldc, sum.x, alpha, beta);
    put(C, row, col + 1, M, N, ldc, sum.y, alpha, beta);
}
