// wgmma, the tensor core instruction of a warpgroup (sm_90a): 128 threads start a product together. The tensor cores
// read its operands from shared memory themselves, and the threads wait for it as for an asynchronous copy.
#pragma once

#include "cp_async.cuh"
#include "elements.cuh"

// A matrix descriptor: where an operand lies in shared memory, and how. Here mostly with the 128-byte swizzle: rows of
// 128 bytes whose eight 16-byte units have changed places (unit u of row r is at u ^ r % 8), in blocks of eight rows
// that are aligned to 1024 bytes. With the 64-byte swizzle rows have half of that (u ^ r / 2 % 4, aligned to 512 bytes).
// `leading` and `stride` are the byte offsets of PTX's same names:
// - K-major, k along the rows: `stride` bytes from one block of eight rows to the next. 16 (tf32: 8) steps of k are
//   32 bytes further on.
// - MN-major, k across the rows: `leading` bytes from one box of 128-byte rows to the next, `stride` from eight k to
//   the next eight.
typedef unsigned long long Descriptor;

__device__ inline Descriptor make_descriptor(const void* p, int leading, int stride, int swizzle = 128)
{
    const unsigned long long code = swizzle == 128 ? 1 : 2;
    return (shared_address(p) & 0x3ffff) >> 4 | (Descriptor)(leading >> 4) << 16 | (Descriptor)(stride >> 4) << 32
           | code << 62;
}

// Return the descriptor of the same operand, `bytes` further on.
__device__ inline Descriptor advance_descriptor(Descriptor x, int bytes) { return x + (bytes >> 4); }

// Needed before the first product, and after other instructions have touched registers of a product.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Close a group: it holds the products since the last one.
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until all but the PENDING youngest groups are done.
template <int PENDING>
__device__ inline void wgmma_wait_group()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

// Wait until all products are done. Only then may the sums be read; the compiler cannot know that, so each is declared
// to change here.
template <int COUNT>
__device__ inline void wgmma_wait_all(float (&sum)[COUNT])
{
    wgmma_wait_group<0>();
    #pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sum[i]));
}

template <int TIMES, int COUNT>
__device__ inline void wgmma_wait_all(float (&sums)[TIMES][COUNT])
{
    wgmma_wait_group<0>();
    #pragma unroll
    for (int i = 0; i < TIMES * COUNT; ++i) asm volatile("" : "+f"(sums[i / COUNT][i % COUNT]));
}

// Store four 8 x 8 matrices of 16-bit elements to shared memory, from the registers in which a product leaves them:
// w0 of all lanes is the first matrix, and so on. Lanes 0 to 7 give the addresses of the rows of the first matrix,
// lanes 8 to 15 those of the second, and so on.
__device__ inline void stmatrix_x4(void* to, unsigned w0, unsigned w1, unsigned w2, unsigned w3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(shared_address(to)), "r"(w0), "r"(w1), "r"(w2), "r"(w3) : "memory");
}
// The same of each 8 x 8 matrix transposed: its columns become rows of 16 bytes.
__device__ inline void stmatrix_x4_trans(void* to, unsigned w0, unsigned w1, unsigned w2, unsigned w3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(shared_address(to)), "r"(w0), "r"(w1), "r"(w2), "r"(w3) : "memory");
}

// Two of them.
__device__ inline void stmatrix_x2_trans(void* to, unsigned w0, unsigned w1)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                 :: "r"(shared_address(to)), "r"(w0), "r"(w1) : "memory");
}

// wgmma<A_MN, B_MN>(T(), sum, a, b, accumulate): start sum = (accumulate ? sum : 0) + a * b for 64 rows, 2 * COUNT
// columns and 16 k of type T, where sum has COUNT floats a thread: a multiple of 4 from 4 to 120, or 128.
// Each of a and b is MN-major if its flag is 1 and K-major if it is 0; by default they are as in row-major matrices.
//
// wgmma(sum, a, b, accumulate): the same for 8 k of tf32, where b is K-major, and a is in registers, four a thread, or
// in shared memory and K-major.
//
// The sums of thread t (0 to 31) of warp w: floats 4j and 4j + 1 are row 16w + t / 4, columns 8j + 2 * (t % 4) and the
// next; floats 4j + 2 and 4j + 3 are the same columns eight rows below. Its registers of a, for 8 k: row t / 4 and k
// of t % 4, then eight rows below, then both four k further on.
#define FIVE(t, a, b, c, d, e) "%" #t #a ", %" #t #b ", %" #t #c ", %" #t #d ", %" #t #e ", "
#define TEN(t) FIVE(t, 0, 1, 2, 3, 4) FIVE(t, 5, 6, 7, 8, 9)
#define NAMES_4 "%0, %1, %2, %3"
#define NAMES_8 NAMES_4 ", %4, %5, %6, %7"
#define NAMES_12 TEN() "%10, %11"
#define NAMES_16 TEN() "%10, %11, %12, %13, %14, %15"
#define NAMES_20 TEN() FIVE(1, 0, 1, 2, 3, 4) "%15, %16, %17, %18, %19"
#define NAMES_24 TEN() TEN(1) "%20, %21, %22, %23"
#define NAMES_28 TEN() TEN(1) FIVE(2, 0, 1, 2, 3, 4) "%25, %26, %27"
#define NAMES_32 TEN() TEN(1) TEN(2) "%30, %31"
#define NAMES_36 TEN() TEN(1) TEN(2) FIVE(3, 0, 1, 2, 3, 4) "%35"
#define NAMES_40 TEN() TEN(1) TEN(2) FIVE(3, 0, 1, 2, 3, 4) "%35, %36, %37, %38, %39"
#define NAMES_44 TEN() TEN(1) TEN(2) TEN(3) "%40, %41, %42, %43"
#define NAMES_48 TEN() TEN(1) TEN(2) TEN(3) "%40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_52 TEN() TEN(1) TEN(2) TEN(3) TEN(4) "%50, %51"
#define NAMES_56 TEN() TEN(1) TEN(2) TEN(3) TEN(4) "%50, %51, %52, %53, %54, %55"
#define NAMES_60 TEN() TEN(1) TEN(2) TEN(3) TEN(4) FIVE(5, 0, 1, 2, 3, 4) "%55, %56, %57, %58, %59"
#define NAMES_64 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63"
#define NAMES_68 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) FIVE(6, 0, 1, 2, 3, 4) "%65, %66, %67"
#define NAMES_72 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) "%70, %71"
#define NAMES_76 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) FIVE(7, 0, 1, 2, 3, 4) "%75"
#define NAMES_80 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) \
    FIVE(7, 0, 1, 2, 3, 4) "%75, %76, %77, %78, %79"
#define NAMES_84 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) "%80, %81, %82, %83"
#define NAMES_88 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) "%80, %81, %82, %83, %84, %85, %86, %87"
#define NAMES_92 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) "%90, %91"
#define NAMES_96 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) "%90, %91, %92, %93, %94, %95"
#define NAMES_100 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) \
    FIVE(9, 0, 1, 2, 3, 4) "%95, %96, %97, %98, %99"
#define NAMES_104 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) "%100, %101, %102, %103"
#define NAMES_108 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) \
    FIVE(10, 0, 1, 2, 3, 4) "%105, %106, %107"
#define NAMES_112 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) "%110, %111"
#define NAMES_116 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) \
    FIVE(11, 0, 1, 2, 3, 4) "%115"
#define NAMES_120 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) \
    FIVE(11, 0, 1, 2, 3, 4) "%115, %116, %117, %118, %119"
#define NAMES_124 NAMES_120 ", %120, %121, %122, %123"
#define NAMES_128 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11) \
    "%120, %121, %122, %123, %124, %125, %126, %127"
#define FOUR(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define SUMS(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12), \
                FOUR(i + 16), FOUR(i + 20), FOUR(i + 24), FOUR(i + 28)
#define SUMS_4 FOUR(0)
#define SUMS_8 SUMS_4, FOUR(4)
#define SUMS_12 SUMS_8, FOUR(8)
#define SUMS_16 SUMS_8, FOUR(8), FOUR(12)
#define SUMS_20 SUMS_16, FOUR(16)
#define SUMS_24 SUMS_16, FOUR(16), FOUR(20)
#define SUMS_28 SUMS_24, FOUR(24)
#define SUMS_32 SUMS(0)
#define SUMS_36 SUMS_32, FOUR(32)
#define SUMS_40 SUMS_32, FOUR(32), FOUR(36)
#define SUMS_44 SUMS_40, FOUR(40)
#define SUMS_48 SUMS_40, FOUR(40), FOUR(44)
#define SUMS_52 SUMS_48, FOUR(48)
#define SUMS_56 SUMS_32, FOUR(32), FOUR(36), FOUR(40), FOUR(44), FOUR(48), FOUR(52)
#define SUMS_60 SUMS_56, FOUR(56)
#define SUMS_64 SUMS_32, SUMS(32)
#define SUMS_68 SUMS_64, FOUR(64)
#define SUMS_72 SUMS_64, FOUR(64), FOUR(68)
#define SUMS_76 SUMS_72, FOUR(72)
#define SUMS_80 SUMS_64, FOUR(64), FOUR(68), FOUR(72), FOUR(76)
#define SUMS_84 SUMS_80, FOUR(80)
#define SUMS_88 SUMS_80, FOUR(80), FOUR(84)
#define SUMS_92 SUMS_88, FOUR(88)
#define SUMS_96 SUMS_64, SUMS(64)
#define SUMS_100 SUMS_96, FOUR(96)
#define SUMS_104 SUMS_96, FOUR(96), FOUR(100)
#define SUMS_108 SUMS_104, FOUR(104)
#define SUMS_112 SUMS_96, FOUR(96), FOUR(100), FOUR(104), FOUR(108)
#define SUMS_116 SUMS_112, FOUR(112)
#define SUMS_120 SUMS_112, FOUR(112), FOUR(116)
#define SUMS_124 SUMS_120, FOUR(120)
#define SUMS_128 SUMS_96, SUMS(96)

#define WGMMA(T, TYPE, N, COUNT, A, B, ACC, MAJOR)                                                          \
    template <int A_MN = 0, int B_MN = 1>                                                                   \
    __device__ inline void wgmma(T, float (&sum)[COUNT], Descriptor a, Descriptor b, bool accumulate)       \
    {                                                                                                       \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " ACC ", 0;"                                           \
                     "  wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                      \
                     "  {" NAMES_##COUNT "}, " A ", " B ", p, 1, 1, " MAJOR "; }"                           \
                     : SUMS_##COUNT : "l"(a), "l"(b), "r"((int)accumulate), "n"(A_MN), "n"(B_MN));          \
    }
#define WGMMA_TF32(N, COUNT, A, B, ACC)                                                                     \
    __device__ inline void wgmma(float (&sum)[COUNT], const unsigned* a, Descriptor b, bool accumulate)     \
    {                                                                                                       \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " ACC ", 0;"                                           \
                     "  wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32"                            \
                     "  {" NAMES_##COUNT "}, {" A "}, " B ", p, 1, 1; }"                                    \
                     : SUMS_##COUNT : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)accumulate));\
    }
#define WGMMA_TF32_SHARED(N, COUNT, A, B, ACC)                                                              \
    __device__ inline void wgmma(float (&sum)[COUNT], Descriptor a, Descriptor b, bool accumulate)          \
    {                                                                                                       \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " ACC ", 0;"                                           \
                     "  wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32"                            \
                     "  {" NAMES_##COUNT "}, " A ", " B ", p, 1, 1; }"                                      \
                     : SUMS_##COUNT : "l"(a), "l"(b), "r"((int)accumulate));                                \
    }

WGMMA(Bf16, "bf16", 8, 4, "%4", "%5", "%6", "%7, %8")
WGMMA(Bf16, "bf16", 16, 8, "%8", "%9", "%10", "%11, %12")
WGMMA(Bf16, "bf16", 24, 12, "%12", "%13", "%14", "%15, %16")
WGMMA(Bf16, "bf16", 32, 16, "%16", "%17", "%18", "%19, %20")
WGMMA(Bf16, "bf16", 40, 20, "%20", "%21", "%22", "%23, %24")
WGMMA(Bf16, "bf16", 48, 24, "%24", "%25", "%26", "%27, %28")
WGMMA(Bf16, "bf16", 56, 28, "%28", "%29", "%30", "%31, %32")
WGMMA(Bf16, "bf16", 64, 32, "%32", "%33", "%34", "%35, %36")
WGMMA(Bf16, "bf16", 72, 36, "%36", "%37", "%38", "%39, %40")
WGMMA(Bf16, "bf16", 80, 40, "%40", "%41", "%42", "%43, %44")
WGMMA(Bf16, "bf16", 88, 44, "%44", "%45", "%46", "%47, %48")
WGMMA(Bf16, "bf16", 96, 48, "%48", "%49", "%50", "%51, %52")
WGMMA(Bf16, "bf16", 104, 52, "%52", "%53", "%54", "%55, %56")
WGMMA(Bf16, "bf16", 112, 56, "%56", "%57", "%58", "%59, %60")
WGMMA(Bf16, "bf16", 120, 60, "%60", "%61", "%62", "%63, %64")
WGMMA(Bf16, "bf16", 128, 64, "%64", "%65", "%66", "%67, %68")
WGMMA(Bf16, "bf16", 136, 68, "%68", "%69", "%70", "%71, %72")
WGMMA(Bf16, "bf16", 144, 72, "%72", "%73", "%74", "%75, %76")
WGMMA(Bf16, "bf16", 152, 76, "%76", "%77", "%78", "%79, %80")
WGMMA(Bf16, "bf16", 160, 80, "%80", "%81", "%82", "%83, %84")
WGMMA(Bf16, "bf16", 168, 84, "%84", "%85", "%86", "%87, %88")
WGMMA(Bf16, "bf16", 176, 88, "%88", "%89", "%90", "%91, %92")
WGMMA(Bf16, "bf16", 184, 92, "%92", "%93", "%94", "%95, %96")
WGMMA(Bf16, "bf16", 192, 96, "%96", "%97", "%98", "%99, %100")
WGMMA(Bf16, "bf16", 200, 100, "%100", "%101", "%102", "%103, %104")
WGMMA(Bf16, "bf16", 208, 104, "%104", "%105", "%106", "%107, %108")
WGMMA(Bf16, "bf16", 216, 108, "%108", "%109", "%110", "%111, %112")
WGMMA(Bf16, "bf16", 224, 112, "%112", "%113", "%114", "%115, %116")
WGMMA(Bf16, "bf16", 232, 116, "%116", "%117", "%118", "%119, %120")
WGMMA(Bf16, "bf16", 240, 120, "%120", "%121", "%122", "%123, %124")
WGMMA(Bf16, "bf16", 248, 124, "%124", "%125", "%126", "%127, %128")
WGMMA(Bf16, "bf16", 256, 128, "%128", "%129", "%130", "%131, %132")
WGMMA(Fp16, "f16", 8, 4, "%4", "%5", "%6", "%7, %8")
WGMMA(Fp16, "f16", 16, 8, "%8", "%9", "%10", "%11, %12")
WGMMA(Fp16, "f16", 24, 12, "%12", "%13", "%14", "%15, %16")
WGMMA(Fp16, "f16", 32, 16, "%16", "%17", "%18", "%19, %20")
WGMMA(Fp16, "f16", 40, 20, "%20", "%21", "%22", "%23, %24")
WGMMA(Fp16, "f16", 48, 24, "%24", "%25", "%26", "%27, %28")
WGMMA(Fp16, "f16", 56, 28, "%28", "%29", "%30", "%31, %32")
WGMMA(Fp16, "f16", 64, 32, "%32", "%33", "%34", "%35, %36")
WGMMA(Fp16, "f16", 72, 36, "%36", "%37", "%38", "%39, %40")
WGMMA(Fp16, "f16", 80, 40, "%40", "%41", "%42", "%43, %44")
WGMMA(Fp16, "f16", 88, 44, "%44", "%45", "%46", "%47, %48")
WGMMA(Fp16, "f16", 96, 48, "%48", "%49", "%50", "%51, %52")
WGMMA(Fp16, "f16", 104, 52, "%52", "%53", "%54", "%55, %56")
WGMMA(Fp16, "f16", 112, 56, "%56", "%57", "%58", "%59, %60")
WGMMA(Fp16, "f16", 120, 60, "%60", "%61", "%62", "%63, %64")
WGMMA(Fp16, "f16", 128, 64, "%64", "%65", "%66", "%67, %68")
WGMMA(Fp16, "f16", 136, 68, "%68", "%69", "%70", "%71, %72")
WGMMA(Fp16, "f16", 144, 72, "%72", "%73", "%74", "%75, %76")
WGMMA(Fp16, "f16", 152, 76, "%76", "%77", "%78", "%79, %80")
WGMMA(Fp16, "f16", 160, 80, "%80", "%81", "%82", "%83, %84")
WGMMA(Fp16, "f16", 168, 84, "%84", "%85", "%86", "%87, %88")
WGMMA(Fp16, "f16", 176, 88, "%88", "%89", "%90", "%91, %92")
WGMMA(Fp16, "f16", 184, 92, "%92", "%93", "%94", "%95, %96")
WGMMA(Fp16, "f16", 192, 96, "%96", "%97", "%98", "%99, %100")
WGMMA(Fp16, "f16", 200, 100, "%100", "%101", "%102", "%103, %104")
WGMMA(Fp16, "f16", 208, 104, "%104", "%105", "%106", "%107, %108")
WGMMA(Fp16, "f16", 216, 108, "%108", "%109", "%110", "%111, %112")
WGMMA(Fp16, "f16", 224, 112, "%112", "%113", "%114", "%115, %116")
WGMMA(Fp16, "f16", 232, 116, "%116", "%117", "%118", "%119, %120")
WGMMA(Fp16, "f16", 240, 120, "%120", "%121", "%122", "%123, %124")
WGMMA(Fp16, "f16", 248, 124, "%124", "%125", "%126", "%127, %128")
WGMMA(Fp16, "f16", 256, 128, "%128", "%129", "%130", "%131, %132")
WGMMA_TF32(32, 16, "%16, %17, %18, %19", "%20", "%21")
WGMMA_TF32(64, 32, "%32, %33, %34, %35", "%36", "%37")
WGMMA_TF32(96, 48, "%48, %49, %50, %51", "%52", "%53")
WGMMA_TF32(128, 64, "%64, %65, %66, %67", "%68", "%69")
WGMMA_TF32(160, 80, "%80, %81, %82, %83", "%84", "%85")
WGMMA_TF32(192, 96, "%96, %97, %98, %99", "%100", "%101")
WGMMA_TF32(224, 112, "%112, %113, %114, %115", "%116", "%117")
WGMMA_TF32(256, 128, "%128, %129, %130, %131", "%132", "%133")
WGMMA_TF32_SHARED(32, 16, "%16", "%17", "%18")
WGMMA_TF32_SHARED(64, 32, "%32", "%33", "%34")
WGMMA_TF32_SHARED(96, 48, "%48", "%49", "%50")
WGMMA_TF32_SHARED(128, 64, "%64", "%65", "%66")
WGMMA_TF32_SHARED(160, 80, "%80", "%81", "%82")
WGMMA_TF32_SHARED(192, 96, "%96", "%97", "%98")
WGMMA_TF32_SHARED(224, 112, "%112", "%113", "%114")
WGMMA_TF32_SHARED(256, 128, "%128", "%129", "%130")

#undef FIVE
#undef TEN
#undef NAMES_4
#undef NAMES_8
#undef NAMES_12
#undef NAMES_16
#undef NAMES_20
#undef NAMES_24
#undef NAMES_28
#undef NAMES_32
#undef NAMES_36
#undef NAMES_40
#undef NAMES_44
#undef NAMES_48
#undef NAMES_52
#undef NAMES_56
#undef NAMES_60
#undef NAMES_64
#undef NAMES_68
#undef NAMES_72
#undef NAMES_76
#undef NAMES_80
#undef NAMES_84
#undef NAMES_88
#undef NAMES_92
#undef NAMES_96
#undef NAMES_100
#undef NAMES_104
#undef NAMES_108
#undef NAMES_112
#undef NAMES_116
#undef NAMES_120
#undef NAMES_124
#undef NAMES_128
#undef FOUR
#undef SUMS
#undef SUMS_4
#undef SUMS_8
#undef SUMS_12
#undef SUMS_16
#undef SUMS_20
#undef SUMS_24
#undef SUMS_28
#undef SUMS_32
#undef SUMS_36
#undef SUMS_40
#undef SUMS_44
#undef SUMS_48
#undef SUMS_52
#undef SUMS_56
#undef SUMS_60
#undef SUMS_64
#undef SUMS_68
#undef SUMS_72
#undef SUMS_76
#undef SUMS_80
#undef SUMS_84
#undef SUMS_88
#undef SUMS_92
#undef SUMS_96
#undef SUMS_100
#undef SUMS_104
#undef SUMS_108
#undef SUMS_112
#undef SUMS_116
#undef SUMS_120
#undef SUMS_124
#undef SUMS_128
#undef WGMMA
#undef WGMMA_TF32
#undef WGMMA_TF32_SHARED
