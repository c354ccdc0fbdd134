// Floats as sums of PARTS 16-bit numbers, and products of those on tensor cores. The including file says what a part is
// (Element), how many there are (PARTS), and for how many k the tensor cores' sums are kept (PART_K). From rung 31 on.
#pragma once

#include "vector.cuh"
#include "wgmma.cuh"

// The parts of four neighbours, the largest first, each the nearest to what is left.
struct Words { uint2 part[PARTS]; };

__device__ inline Words split(float4 v)
{
    const auto low = [](unsigned word) { return to_float(Element{(unsigned short)word}); };
    const auto high = [](unsigned word) { return to_float(Element{(unsigned short)(word >> 16)}); };
    Words words;
    #pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const uint2 two = make_uint2(pack<Element>(v.x, v.y), pack<Element>(v.z, v.w));
        words.part[p] = two;
        v = make_float4(v.x - low(two.x), v.y - high(two.x), v.z - low(two.y), v.w - high(two.y));
    }
    return words;
}

// The parts of a tile of A and one of B, K long. The rows in shared memory have 64 elements, as wide as the swizzle: if K
// is 32, row r of A shares one with row r + TILE_M / 2.
template <int TILE_M, int TILE_N, int K = PART_K>
struct Parts {
    Element a[PARTS][TILE_M * K / 64][64];
    Element b[PARTS][TILE_N / 64][K][64];
};

// Start sum = (accumulate ? sum : 0) + the products of parts for 64 rows, TILE_N columns and 16 k, the small ones first.
// Parts x1 and y1 are the largest. Products like x2 y3, of parts whose numbers add up to more than PARTS + 1, are left out.
// They begin at (row, column) of the rows of A in shared memory, and at row k of those of B.
template <int TILE_M, int TILE_N, int K>
__device__ inline void multiply(float (&sum)[TILE_N / 2], const Parts<TILE_M, TILE_N, K>& parts, int row, int column,
                                int k, bool accumulate)
{
    #pragma unroll
    for (int degree = PARTS - 1; degree >= 0; --degree)  // of smallness: 0 is x1 y1
        #pragma unroll
        for (int p = 0; p <= degree; ++p) {
            const Descriptor a = make_descriptor(parts.a[p][row], 0, 1024);
            const Descriptor b = make_descriptor(parts.b[degree - p], sizeof parts.b[0][0], 1024);
            wgmma(Element(), sum, advance_descriptor(a, 2 * column), advance_descriptor(b, 128 * k),
                  accumulate || degree < PARTS - 1 || p > 0);
        }
}

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
