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
