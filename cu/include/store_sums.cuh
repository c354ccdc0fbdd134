// Store sums of products of parts, and compute those again in float32 that parts cannot express. From rung 31 on.
#pragma once

#include "elements.cuh"

// Return one element of op(A) op(B) in float32; its row and its column begin at a and b, and have steps of so many floats.
__device__ inline float dot(const float* a, int step_a, const float* b, int step_b, int K)
{
    float sum = 0.f;
    #pragma unroll 4
    for (int k = 0; k < K; ++k) sum = fmaf(a[(long long)k * step_a], b[(long long)k * step_b], sum);
    return sum;
}

// Store the sums of a thread: of each 64 rows from `row` on, eight pairs of columns of two rows, from column `col` on.
//
// A part of an infinity is NaN, and so is the product. A thread that finds NaN among its sums computes them again in
// float32: infinities and overflow come out as in any float32 product, slowly.
template <bool TRANS_A = false, bool TRANS_B = false, int PASSES, int COUNT, class After>
__device__ inline void store_sums(const float (&sum)[PASSES][COUNT], unsigned row, unsigned col, const float* A,
                                  const float* B, float* C, int M, int N, int K, int lda, int ldb, int ldc,
                                  float alpha, float beta, After after)
{
    const bool pairs = (unsigned long long)C % 8 == 0 && ldc % 2 == 0;
    const auto row_of = [&](int pass, int i) { return row + 64 * pass + i / 2 % 2 * 8; };
    const auto col_of = [&](int i) { return col + i / 4 * 8; };
    const auto store = [&](int pass, int i, float x, float y) {
        const unsigned r = row_of(pass, i), s = col_of(i);
        if (r < M) store2(C + (long long)r * ldc + s, x, y, N - (int)s, pairs, alpha, beta, after, r, s);
    };
    bool whole = true;  // no sum is NaN
    #pragma unroll
    for (int pass = 0; pass < PASSES; ++pass)
        #pragma unroll
        for (int i = 0; i < COUNT; ++i) whole &= sum[pass][i] == sum[pass][i];
    if (whole) {
        #pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
            #pragma unroll
            for (int i = 0; i < COUNT; i += 2) store(pass, i, sum[pass][i], sum[pass][i + 1]);
    } else {
        #pragma unroll 1
        for (int at = 0; at < PASSES * COUNT; at += 2) {
            const int pass = at / COUNT, i = at % COUNT;
            const unsigned r = row_of(pass, i), s = col_of(i);
            const auto value = [&](unsigned n) {
                if (r >= M || n >= N) return 0.f;
                return dot(A + (long long)r * (TRANS_A ? 1 : lda), TRANS_A ? lda : 1,
                           B + (long long)n * (TRANS_B ? ldb : 1), TRANS_B ? 1 : ldb, K);
            };
            const float x = value(s), y = value(s + 1);
            store(pass, i, x, y);
        }
    }
}
