// float32 products from three products of fp16, with scales, as rung 36 makes them.
//
// An fp16 has 11 significant bits. A float, times a power of two, is hi + lo and a rest of at most 2^-23 of it: hi is the
// nearest fp16, lo the one nearest to the remainder. The products lo * hi, hi * lo and hi * hi lack lo * lo, at most 2^-22,
// and what comes from the rests. That is 2^-21 in all, as with 3xtf32 (rung 28).
//
// But an fp16 has the exponents from -14 to 15 only. So the rows of op(A), and the columns of op(B), are scaled: their
// largest element comes between 2^14 and 2^15, where it rounds to no infinity. Then lo is a multiple of 2^-24, the least
// subnormal fp16. Elements down to 2^-17 of the largest keep their 22 bits. Smaller ones have an error of 2^-25, which is
// 2^-39 of the largest. (lo times 2^11 would keep 28 octaves, but its products then need a second sum, and registers or
// another wait for it. In exchange a row of 17 octaves would become one of 28, not one of 60.)
#pragma once

#include "elements.cuh"

typedef Fp16 Element;
#define PARTS 2
#define PART_K 32

#include "parts.cuh"
