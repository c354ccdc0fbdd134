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

// Eight neighbours, which fill 16 bytes of a part.
struct Neighbours { float4 low, high; };

__device__ inline Neighbours gather_neighbours(const float (&v)[8])
{
    return {make_float4(v[0], v[1], v[2], v[3]), make_float4(v[4], v[5], v[6], v[7])};
}

// Load those of which so many exist, with two instructions if `quads` says that they are aligned to 16 bytes.
__device__ inline Neighbours load_neighbours(const float* p, int exist, bool quads)
{
    if (quads && exist == 8) return {__ldg((const float4*)p), __ldg((const float4*)p + 1)};
    return {load4(p, exist), load4(p + 4, exist - 4)};
}

// The parts of those; of(p) is 16 bytes.
struct Units {
    Words low, high;

    __device__ uint4 of(int p) const { return make_uint4(low.part[p].x, low.part[p].y, high.part[p].x, high.part[p].y); }
};

__device__ inline Units split(const Neighbours& v) { return {split(v.low), split(v.high)}; }

// The parts of a tile of A and one of B, K long. The rows in shared memory have 64 elements, as wide as the swizzle: if K
// is 32, row r of A shares one with row r + TILE_M / 2.
template <int TILE_M, int TILE_N, int K = PART_K>
struct Parts {
    enum { B_ACROSS = 1 };        // a row of B has one k
    enum { A_SIDE_BY_SIDE = 1 };  // a row has both halves of A, if K is 32

    Element a[PARTS][TILE_M * K / 64][64];
    Element b[PARTS][TILE_N / 64][K][64];

    // Where an element of row r of A is in a part: in which half of a row that two share, how far the row is, how far in it.
    static __device__ unsigned half_a(unsigned r) { return r / (TILE_M * K / 64); }
    static __device__ unsigned row_a(unsigned r) { return 64 * (r % (TILE_M * K / 64)); }
    static __device__ unsigned column_a(unsigned r, unsigned k, unsigned half) { return (K * half + k) ^ r % 8 * 8; }

    // And of column n of B: how far its box of 64 columns is, its row in the box, how far in it.
    static __device__ unsigned box_b(unsigned n) { return n / 64 * (K * 64); }
    static __device__ unsigned row_b(unsigned k) { return 64 * k; }
    static __device__ unsigned column_b(unsigned n, unsigned k) { return n % 64 ^ k % 8 * 8; }
};

// Call product(x, y, first) for each product of parts that counts, the small ones first. Parts 0 are the largest. Products
// like that of parts 1 and 2, whose numbers add up to PARTS or more, are left out.
template <class Product>
__device__ inline void each_product(Product product)
{
    #pragma unroll
    for (int degree = PARTS - 1; degree >= 0; --degree)  // of smallness
        #pragma unroll
        for (int p = 0; p <= degree; ++p) product(p, degree - p, degree == PARTS - 1 && p == 0);
}

// Start sum = (accumulate ? sum : 0) + the products of parts for 64 rows, TILE_N columns and 16 k. They begin at
// (row, column) of the rows of A in shared memory, and at row k of those of B.
template <int TILE_M, int TILE_N, int K>
__device__ inline void multiply(float (&sum)[TILE_N / 2], const Parts<TILE_M, TILE_N, K>& parts, int row, int column,
                                int k, bool accumulate)
{
    each_product([&](int x, int y, bool first) {
        const Descriptor a = make_descriptor(parts.a[x][row], 0, 1024);
        const Descriptor b = make_descriptor(parts.b[y], sizeof parts.b[0][0], 1024);
        wgmma(Element(), sum, advance_descriptor(a, 2 * column), advance_descriptor(b, 128 * k), accumulate || !first);
    });
}
