// Products on the tensor cores by a warpgroup, 128 threads at once (wgmma, sm_90a). They read shared memory by
// themselves and run beside the threads, which wait for them as for copies.
#pragma once

#include "cp_async.cuh"
#include "elements.cuh"

// Where an operand lies in shared memory and how: in rows of 128 bytes whose eight 16-byte units have changed
// places (unit u of row r lies at u ^ r % 8), eight rows a block, blocks aligned to 1024 bytes. Two kinds:
// - k along the rows: `stride` bytes from one block of eight rows to the next. 16 (tf32: 8) steps of k are
//   32 bytes further on.
// - k across the rows: `leading` bytes from 128 bytes of a row to the next 128, `stride` from eight k to the
//   next eight.
typedef unsigned long long Descriptor;

__device__ inline Descriptor make_descriptor(const void* p, int leading, int stride)
{
    const unsigned long long swizzled_128 = 1;
    return (shared_address(p) & 0x3ffff) >> 4 | (Descriptor)(leading >> 4) << 16 | (Descriptor)(stride >> 4) << 32
           | swizzled_128 << 62;
}

// The same operand, `bytes` further on.
__device__ inline Descriptor advance_descriptor(Descriptor x, int bytes) { return x + (bytes >> 4); }

// Before the first product, and after registers that products use were touched.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes a group: the products since the last one.
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until the products are done, but for those of the PENDING youngest groups.
template <int PENDING>
__device__ inline void wgmma_wait_group()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

// Until all are done. Only then may sums be read: the compiler cannot know, so they are said to change here.
template <int COUNT>
__device__ inline void wgmma_wait_all(float (&sum)[COUNT])
{
    wgmma_wait_group<0>();
    #pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sum[i]));
}

// Four 8 x 8 matrices of 16-bit elements to shared memory, from where products leave them: the first from the
// first words of all lanes, and so on. A lane says where one row of eight goes: those from 0 on for the first
// matrix, from 8 on for the second...
__device__ inline void stmatrix_x4(void* to, unsigned w0, unsigned w1, unsigned w2, unsigned w3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(shared_address(to)), "r"(w0), "r"(w1), "r"(w2), "r"(w3) : "memory");
}

// multiply(T(), sum, a, b, add): sum = (add ? sum : 0) + a * b for 64 rows, 16 k of type T and 2 * COUNT
// columns, where sum has COUNT floats a thread: 32, 64, 96 or 128. a has k along its rows of shared memory, b
// across.
//
// multiply(sum, a, b, add): the same for 8 k of tf32, where a is in registers, four a thread, and b has k along
// its rows.
//
// Thread t of warp w has, of eight columns each, floats 4j and 4j + 1: row 16w + t / 4, columns
// 8j + 2 * (t % 4) and the next; 4j + 2 and 4j + 3: eight rows below. Its a of 8 k: row and k of t / 4 and
// t % 4, then eight rows below, then four k further on both.
#define FIVE(t, a, b, c, d, e) "%" #t #a ", %" #t #b ", %" #t #c ", %" #t #d ", %" #t #e ", "
#define TEN(t) FIVE(t, 0, 1, 2, 3, 4) FIVE(t, 5, 6, 7, 8, 9)
#define NAMES_32 TEN() TEN(1) TEN(2) "%30, %31"
#define NAMES_64 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63"
#define NAMES_96 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) "%90, %91, %92, %93, %94, %95"
#define NAMES_128 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11) \
    "%120, %121, %122, %123, %124, %125, %126, %127"
#define FOUR(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define SUMS(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12), \
                FOUR(i + 16), FOUR(i + 20), FOUR(i + 24), FOUR(i + 28)
#define SUMS_32 SUMS(0)
#define SUMS_64 SUMS_32, SUMS(32)
#define SUMS_96 SUMS_64, SUMS(64)
#define SUMS_128 SUMS_96, SUMS(96)

#define MULTIPLY(T, TYPE, N, COUNT, A, B, ADD)                                                              \
    __device__ inline void multiply(T, float (&sum)[COUNT], Descriptor a, Descriptor b, bool add)                 \
    {                                                                                                       \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADD ", 0;"                                           \
                     "  wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                      \
                     "  {" NAMES_##COUNT "}, " A ", " B ", p, 1, 1, 0, 1; }"                                \
                     : SUMS_##COUNT : "l"(a), "l"(b), "r"((int)add));                                       \
    }
#define MULTIPLY_TF32(N, COUNT, A, B, ADD)                                                                  \
    __device__ inline void multiply(float (&sum)[COUNT], const unsigned* a, Descriptor b, bool add)            \
    {                                                                                                       \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADD ", 0;"                                           \
                     "  wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32"                            \
                     "  {" NAMES_##COUNT "}, {" A "}, " B ", p, 1, 1; }"                                    \
                     : SUMS_##COUNT : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));   \
    }

MULTIPLY(Bf16, "bf16", 64, 32, "%32", "%33", "%34")
MULTIPLY(Bf16, "bf16", 128, 64, "%64", "%65", "%66")
MULTIPLY(Bf16, "bf16", 192, 96, "%96", "%97", "%98")
MULTIPLY(Bf16, "bf16", 256, 128, "%128", "%129", "%130")
MULTIPLY(Fp16, "f16", 64, 32, "%32", "%33", "%34")
MULTIPLY(Fp16, "f16", 128, 64, "%64", "%65", "%66")
MULTIPLY(Fp16, "f16", 192, 96, "%96", "%97", "%98")
MULTIPLY(Fp16, "f16", 256, 128, "%128", "%129", "%130")
MULTIPLY_TF32(64, 32, "%32, %33, %34, %35", "%36", "%37")
MULTIPLY_TF32(128, 64, "%64, %65, %66, %67", "%68", "%69")
MULTIPLY_TF32(192, 96, "%96, %97, %98, %99", "%100", "%101")
MULTIPLY_TF32(256, 128, "%128, %129, %130, %131", "%132", "%133")

#undef FIVE
#undef TEN
#undef NAMES_32
#undef NAMES_64
#undef NAMES_96
#undef NAMES_128
#undef FOUR
#undef SUMS
#undef SUMS_32
#undef SUMS_64
#undef SUMS_96
#undef SUMS_128
#undef MULTIPLY
#undef MULTIPLY_TF32
