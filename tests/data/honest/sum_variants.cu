// Sums in another order or with more digits: compensated, float64, four sums, from the end, in pairs
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// 
// [params]
// HOW = [0, 1, 2, 3, 4]
// ///
#include "gemm.cuh"

MATMUL()
{
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N) return;
    auto term = [&](int k) { return A[(Index)row * lda + k] * B[(Index)k * ldb + col]; };
    float sum = 0.f;
    if (HOW == 0) {  // Kahan's
        float lost = 0.f;
        for (int k = 0; k < K; ++k) {
            float y = __fsub_rn(term(k), lost), t = __fadd_rn(sum, y);
            lost = __fsub_rn(__fsub_rn(t, sum), y);
            sum = t;
        }
        if (!isfinite(sum)) {  // infinity minus infinity: what is lost is not a number
            sum = 0.f;
            for (int k = 0; k < K; ++k) sum += term(k);
        }
    } else if (HOW == 1) {
        double wide = 0;
        for (int k = 0; k < K; ++k) wide += (double)A[(Index)row * lda + k] * B[(Index)k * ldb + col];
        sum = (float)wide;
    } else if (HOW == 2) {
        float four[4] = {};
        for (int k = 0; k < K; ++k) four[k % 4] += term(k);
        sum = four[0] + four[1] + (four[2] + four[3]);
    } else if (HOW == 3) {
        for (int k = K - 1; k >= 0; --k) sum += term(k);
    } else {
        int k = 0;
        for (; k + 1 < K; k += 2) sum += term(k) + term(k + 1);
        if (k < K) sum += term(k);
    }
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
