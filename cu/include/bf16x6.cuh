// float32 products from six products of bf16, as rungs 31 and 32 make them.
//
// A float has 24 significant bits and a bf16 has 8, with the same range. So a float is the sum of three bf16,
// x = x1 + x2 + x3, each the remainder rounded to nearest. Of the nine products of two such sums three are below
// 2^-24 of the whole and left out. The tensor cores do the other six, smallest first.
//
// They truncate what does not fit into a sum, which would bias it the more the longer the sum is. So their sums are
// only PART_K long, and the threads add these up with rounding.
#pragma once

#include "elements.cuh"

typedef Bf16 Element;
#define PARTS 3
#define PART_K 32

#include "parts.cuh"

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
