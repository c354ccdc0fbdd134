// float32 products from three products of tf32, as rung 38 makes them.
//
// A float has 24 significant bits and a tf32 number 11, with the same range. A float is hi + lo and a rest of at most 2^-24 of
// it: hi is the nearest tf32 number, lo the one nearest to the remainder. The products lo * hi, hi * lo and hi * hi lack lo *
// lo, at most 2^-24, and what comes from the rests. That is less than 2^-22 in all; rung 28 cuts lo off, and has 2^-21.
//
// The tensor cores read 32-bit operands only if k is along their rows. So a panel of B has its columns as rows, as one of A has
// its rows, and where memory has them otherwise they are transposed on their way.
#pragma once

#include "store_sums.cuh"
#include "vector.cuh"
#include "wgmma.cuh"

struct Tf32 { unsigned bits; };

typedef Tf32 Element;
#define PARTS 2
#define STEP_K 8  // of one product

// Four neighbours, which fill 16 bytes of a part.
struct Neighbours { float4 low; };

__device__ inline Neighbours gather_neighbours(const float (&v)[4]) { return {make_float4(v[0], v[1], v[2], v[3])}; }

// Load those of which so many exist, with one instruction if `quads` says that they are aligned to 16 bytes.
__device__ inline Neighbours load_neighbours(const float* p, int exist, bool quads)
{
    return {quads && exist == 4 ? __ldg((const float4*)p) : load4(p, exist)};
}

// The parts of those; of(p) is 16 bytes.
struct Units {
    uint4 part[PARTS];

    __device__ uint4 of(int p) const { return part[p]; }
};

__device__ inline Units split(const Neighbours& v)
{
    // What the lower 13 bits of a tf32 number are is not said anywhere, and the remainder must not have them.
    const auto round = [](float x) { return operand_bits(x) & 0xffffe000; };
    const auto round4 = [&](float4 x) { return make_uint4(round(x.x), round(x.y), round(x.z), round(x.w)); };
    const float4 x = v.low;
    const uint4 hi = round4(x);
    return {hi, round4(make_float4(x.x - __uint_as_float(hi.x), x.y - __uint_as_float(hi.y), x.z - __uint_as_float(hi.z),
                                   x.w - __uint_as_float(hi.w)))};
}

// The parts of a tile of A and one of B, K long: 16 or 32. Rows in shared memory are as wide as the swizzle.
template <int TILE_M, int TILE_N, int K>
struct Parts {
    static_assert(K == 16 || K == 32, "a row is as wide as the swizzle, 64 or 128 bytes");

    enum { B_ACROSS = 0 };        // a row of B has K of them, as one of A
    enum { A_SIDE_BY_SIDE = 0 };

    Element a[PARTS][TILE_M][K];
    Element b[PARTS][TILE_N][K];

    // Where an element of row r of A, or of column n of B, is in a part: how far the row is, and how far in it. No two share a
    // row, and B is one box.
    static __device__ unsigned half_a(unsigned) { return 0; }
    static __device__ unsigned row_a(unsigned r) { return K * r; }
    static __device__ unsigned column_a(unsigned r, unsigned k, unsigned) { return k ^ r / (32 / K) % (K / 4) * 4; }
    static __device__ unsigned box_b(unsigned n) { return row_a(n); }
    static __device__ unsigned row_b(unsigned) { return 0; }
    static __device__ unsigned column_b(unsigned n, unsigned k) { return column_a(n, k, 0); }
};

// Start sum = (accumulate ? sum : 0) + the products of parts for 64 rows, TILE_N columns and 8 k, the small ones first. They
// begin at (row, column) of the rows of A in shared memory, and at column k of those of B.
template <int TILE_M, int TILE_N, int K>
__device__ inline void multiply(float (&sum)[TILE_N / 2], const Parts<TILE_M, TILE_N, K>& parts, int row, int column, int k,
                                bool accumulate)
{
    #pragma unroll
    for (int product = 0; product < 3; ++product) {  // lo * hi, hi * lo, hi * hi
        const Descriptor a = make_descriptor(parts.a[product == 0][row], 16, 32 * K, 4 * K);
        const Descriptor b = make_descriptor(parts.b[product == 1], 16, 32 * K, 4 * K);
        wgmma(sum, advance_descriptor(a, 4 * column), advance_descriptor(b, 4 * k), accumulate || product > 0);
    }
}
