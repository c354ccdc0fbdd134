// Floats as sums of PARTS 16-bit numbers, and products of those on tensor cores. The including file says what a part is
// (Element), how many there are (PARTS), and for how many k the tensor cores' sums are kept (PART_K). From rung 31 on.
// Parts of 32 bits are in tf32x3.cuh.
#pragma once

#include "store_sums.cuh"
#include "vector.cuh"
#include "wgmma.cuh"

#define STEP_K 16  // of one product

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

// What fills 16 bytes of a part, and those of all parts.
struct Neighbours { float4 quad[2]; };
struct Units { uint4 part[PARTS]; };

__device__ inline Units split(const Neighbours& v)
{
    const Words low = split(v.quad[0]), high = split(v.quad[1]);
    Units units;
    #pragma unroll
    for (int p = 0; p < PARTS; ++p)
        units.part[p] = make_uint4(low.part[p].x, low.part[p].y, high.part[p].x, high.part[p].y);
    return units;
}

// The parts of a tile of A and one of B, K long. The rows in shared memory have 64 elements, as wide as the swizzle: if K
// is 32, row r of A shares one with row r + TILE_M / 2.
template <int TILE_M, int TILE_N, int K = PART_K>
struct Parts {
    static constexpr bool B_ACROSS = true;     // its rows have one k
    static constexpr bool A_SIDE_BY_SIDE = true;  // the two halves of A's rows, if K is 32

    Element a[PARTS][TILE_M * K / 64][64];
    Element b[PARTS][TILE_N / 64][K][64];

    // Return where in a part of a the element of row r is, and in one of b that of column n.
    static __device__ unsigned place_a(unsigned r, unsigned k)
    {
        const unsigned line = r % (TILE_M * K / 64), half = r / (TILE_M * K / 64);
        return 64 * line + ((K * half + k) ^ r % 8 * 8);
    }
    static __device__ unsigned place_b(unsigned n, unsigned k) { return n / 64 * (K * 64) + 64 * k + (n % 64 ^ k % 8 * 8); }
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
