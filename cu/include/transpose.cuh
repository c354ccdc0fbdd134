// C = alpha * sums + beta * C where rows begin anywhere, by a warp whose lanes hold quads of four rows: lane l
// of row l / 2 % 4 and column l / 8 * 2 + l % 2. Stored as they are, each would touch 32 sectors for 128 bytes.
// So the lanes of a column turn their quads, a 4 x 4 transposition, and then 32 lanes store 32 neighbours of a
// row.
// `row` and `col` are of this lane's first sum; those of sum[i] lie as in rungs 16 and 20.
#pragma once

template <int TALL, int WIDE>
__device__ inline void store_transposed(float* C, int ldc, unsigned row, unsigned col, const float (&sum)[TALL][WIDE],
                                    int M, int N, float alpha, float beta)
{
    const int self = threadIdx.x / 2 % 4;  // of the four
    row -= self * 4, col += self;
    const auto turn = [&](float& even, float& odd, int bit) {
        const bool second = self & bit;
        const float got = __shfl_xor_sync(~0u, second ? even : odd, 2 * bit);
        (second ? even : odd) = got;
    };
    #pragma unroll
    for (int i = 0; i < TALL; ++i)
        #pragma unroll
        for (int j = 0; j < WIDE; j += 4) {
            float v[4] = {alpha * sum[i][j], alpha * sum[i][j + 1], alpha * sum[i][j + 2], alpha * sum[i][j + 3]};
            turn(v[0], v[1], 1), turn(v[2], v[3], 1);
            turn(v[0], v[2], 2), turn(v[1], v[3], 2);
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                const unsigned m = row + i / 4 * 16 + e * 4 + i % 4, n = col + j * 8;
                float* c = C + (long long)m * ldc + n;
                if (m < M && n < N) *c = beta == 0.f ? v[e] : v[e] + beta * *c;
            }
        }
}
