// float32 products from six products of bf16, as rungs 31 and 32 make them.
//
// A float has 24 significant bits and a bf16 has 8, with the same range. So a float is the sum of three bf16,
// x = x1 + x2 + x3, each the remainder rounded to nearest. Of the nine products of two such sums three are below
// 2^-24 of the whole and left out. The tensor cores do the other six, smallest first.
//
// They truncate what does not fit into a sum, which would bias it the more the longer the sum is. So their sums are
// only PART_K long, and the threads add these up with rounding.
#pragma once

#include "vector.cuh"
#include "wgmma.cuh"

#define PARTS 3
#define PART_K 32

// The parts of a tile of A and one of B, K long. The rows in shared memory have 64 elements, as wide as the swizzle: if K
// is 32, row r of A shares one with row r + TILE_M / 2.
template <int TILE_M, int TILE_N, int K = PART_K>
struct Parts {
    Bf16 a[PARTS][TILE_M * K / 64][64];
    Bf16 b[PARTS][TILE_N / 64][K][64];
};

// The parts of four neighbours: x is part 1, and so on.
struct Words { uint2 part[PARTS]; };

__device__ inline float rest(float x, unsigned bits) { return x - __uint_as_float(bits); }

__device__ inline Words split(float4 v)
{
    Words words;
    #pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const unsigned low = pack<Bf16>(v.x, v.y), high = pack<Bf16>(v.z, v.w);
        words.part[p] = make_uint2(low, high);
        v = make_float4(rest(v.x, low << 16), rest(v.y, low & 0xffff0000u),
                        rest(v.z, high << 16), rest(v.w, high & 0xffff0000u));
    }
    return words;
}

// Start sum = (accumulate ? sum : 0) + the six products for 64 rows, TILE_N columns and 16 k. They begin at (row, column)
// of the rows of A in shared memory, and at row k of those of B.
template <int TILE_M, int TILE_N, int K>
__device__ inline void multiply(float (&sum)[TILE_N / 2], const Parts<TILE_M, TILE_N, K>& parts, int row, int column,
                                int k, bool accumulate)
{
    #pragma unroll
    for (int degree = 2; degree >= 0; --degree)  // of smallness: x1 y3 and x2 y2 are 2^-16 of x1 y1
        #pragma unroll
        for (int p = 0; p <= degree; ++p) {
            const Descriptor a = make_descriptor(parts.a[p][row], 0, 1024);
            const Descriptor b = make_descriptor(parts.b[degree - p], sizeof parts.b[0][0], 1024);
            wgmma(Bf16(), sum, advance_descriptor(a, 2 * column), advance_descriptor(b, 128 * k),
                  accumulate || degree < 2 || p > 0);
        }
}

// Return one element of A B in float32.
__device__ inline float dot(const float* a, const float* b, int K, int ldb)
{
    float sum = 0.f;
    #pragma unroll 4
    for (int k = 0; k < K; ++k) sum = fmaf(a[k], b[(long long)k * ldb], sum);
    return sum;
}

// Store two neighbours of a row of C, of which `count` exist.
__device__ inline void store2(float* c, float x, float y, int count, bool pair, float alpha, float beta)
{
    x *= alpha, y *= alpha;
    if (beta != 0.f) {  // BLAS: otherwise C may hold NaN
        if (count > 0) x += beta * c[0];
        if (count > 1) y += beta * c[1];
    }
    if (pair && count > 1) {
        *(float2*)c = make_float2(x, y);
    } else {
        if (count > 0) c[0] = x;
        if (count > 1) c[1] = y;
    }
}

// Store the sums of a thread: of each 64 rows from `row` on, eight pairs of columns of two rows, from column `col` on.
//
// A part of an infinity is NaN, and so is the product. A thread that finds NaN among its sums computes them again in
// float32: infinities and overflow come out as in any float32 product, slowly.
template <int PASSES, int COUNT>
__device__ inline void store_sums(const float (&sum)[PASSES][COUNT], unsigned row, unsigned col, const float* A,
                                  const float* B, float* C, int M, int N, int K, int lda, int ldb, int ldc,
                                  float alpha, float beta)
{
    const bool pairs = (unsigned long long)C % 8 == 0 && ldc % 2 == 0;
    const auto row_of = [&](int pass, int i) { return row + 64 * pass + i / 2 % 2 * 8; };
    const auto col_of = [&](int i) { return col + i / 4 * 8; };
    const auto store = [&](int pass, int i, float x, float y) {
        const unsigned r = row_of(pass, i), s = col_of(i);
        if (r < M) store2(C + (long long)r * ldc + s, x, y, N - (int)s, pairs, alpha, beta);
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
            const float* a = A + (long long)r * lda;
            const float x = r < M && s < N ? dot(a, B + s, K, ldb) : 0.f;
            const float y = r < M && s + 1 < N ? dot(a, B + s + 1, K, ldb) : 0.f;
            store(pass, i, x, y);
        }
    }
}
