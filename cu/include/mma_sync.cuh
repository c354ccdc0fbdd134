// Matrix products of a warp (mma.sync, sm_80) of elements of 16 bits, and how fragments come from shared memory. Used from
// rung 21 on.
#pragma once

#include "cp_async.cuh"
#include "elements.cuh"

// Load four 8 x 8 matrices. Eight lanes point to the rows of each. Of each a lane gets row lane / 4, columns
// 2 * (lane % 4) and the next; or, with ".trans", that column and these rows.
#define LDMATRIX_X4(form, to, from) \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" form ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(from)) : "memory")

// Compute d += a * b for 16 x 8 elements and 16 k. A lane holds
// - of a: row lane / 4, k = 2 * (lane % 4) and the next, then eight rows below, then both eight k further on;
// - of b: the same k, column lane / 4, then eight k further on;
// - of d: row lane / 4, columns 2 * (lane % 4) and the next, then eight rows below.
#define MMA_M16N8K16(type, name) \
    __device__ inline void mma_m16n8k16(type, float* d, const unsigned* a, const unsigned* b) \
    { \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 " \
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
MMA_M16N8K16(Bf16, "bf16")
MMA_M16N8K16(Fp16, "f16")
#undef MMA_M16N8K16
