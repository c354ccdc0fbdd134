// Coalesced stores of C where its rows are not aligned to 16 bytes.
#pragma once

#include "elements.cuh"

// Store C = after(alpha * sum + beta * C) by whole warps. Lane l of a warp holds four columns (from l / 8 * 2 + l % 2, times
// four) of four rows (from l / 2 % 4, times four), as in rungs 16 and 20; `row` and `col` are those of its sum[0][0].
// Written float by float, that would touch 32 sectors for 128 bytes. So the four lanes of a column quad exchange their
// sums by shuffles, a 4 x 4 transposition, after which the 32 lanes hold 32 neighbours of a row.
template <int TALL, int WIDE, class After = Unchanged>
__device__ inline void store_transposed(float* C, int ldc, unsigned row, unsigned col,
                                        const float (&sum)[TALL][WIDE], int M, int N, float alpha, float beta,
                                        After after = {})
{
    const int self = threadIdx.x / 2 % 4;  // which of the four lanes
    row -= self * 4, col += self;
    const auto exchange = [&](float& even, float& odd, int bit) {
        const bool second = self & bit;
        const float got = __shfl_xor_sync(~0u, second ? even : odd, 2 * bit);
        (second ? even : odd) = got;
    };
    #pragma unroll
    for (int i = 0; i < TALL; ++i)
        #pragma unroll
        for (int j = 0; j < WIDE; j += 4) {
            float v[4] = {alpha * sum[i][j], alpha * sum[i][j + 1], alpha * sum[i][j + 2], alpha * sum[i][j + 3]};
            exchange(v[0], v[1], 1), exchange(v[2], v[3], 1);
            exchange(v[0], v[2], 2), exchange(v[1], v[3], 2);
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                const unsigned m = row + i / 4 * 16 + e * 4 + i % 4, n = col + j * 8;
                float* c = C + (long long)m * ldc + n;
                if (m < M && n < N) *c = after(beta == 0.f ? v[e] : v[e] + beta * *c, m, n);
            }
        }
}
