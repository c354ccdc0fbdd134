// Elements of 16 bits, bf16 and fp16, and how sums in float become elements of C. (CUDA's own headers for these types
// are not at hand when NVRTC compiles a kernel.)
#pragma once

struct Bf16 { unsigned short bits; };
struct Fp16 { unsigned short bits; };

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(Bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ inline float to_float(Fp16 x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

// Return the bits that the tensor cores read: those of a 16-bit element, or a float rounded to tf32, whose significand
// has 11 bits, to nearest even. (TMA rounds ties to even too, as seen on the H200; cvt.rna would round them away from
// zero.)
__device__ inline unsigned operand_bits(Bf16 x) { return x.bits; }
__device__ inline unsigned operand_bits(Fp16 x) { return x.bits; }
__device__ inline unsigned operand_bits(float x)
{
    unsigned bits;
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

// Return two neighbours of a row as one 32-bit word, the first in its lower half. Each is rounded to nearest even.
template <class T>
__device__ inline unsigned pack(float first, float second);
template <>
__device__ inline unsigned pack<Bf16>(float first, float second)
{
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}
template <>
__device__ inline unsigned pack<Fp16>(float first, float second)
{
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}

// Where nothing follows the product: see epilogue.cuh for what may.
struct Unchanged {
    __device__ float operator()(float value, unsigned row, unsigned col) const { return value; }
};

// Store c = after(alpha * sum + beta * c) for the first `count` of two neighbours, of which the first is at (row, col) of C,
// with one instruction if `pairs` says that every row of C begins where two elements may be stored at once.
// BLAS: with beta == 0, C is output only and may hold NaN; 0 * NaN would let it through.
template <class T, class After = Unchanged>
__device__ inline void store2(T* c, float first, float second, int count, bool pairs, float alpha, float beta,
                              After after = {}, unsigned row = 0, unsigned col = 0)
{
    first *= alpha, second *= alpha;
    if (beta != 0.f) {
        if (count > 0) first += beta * to_float(c[0]);
        if (count > 1) second += beta * to_float(c[1]);
    }
    const unsigned word = pack<T>(after(first, row, col), after(second, row, col + 1));
    if (pairs && count > 1) {
        *(unsigned*)c = word;
    } else {
        if (count > 0) c[0].bits = word;
        if (count > 1) c[1].bits = word >> 16;
    }
}
template <class After = Unchanged>
__device__ inline void store2(float* c, float x, float y, int count, bool pairs, float alpha, float beta,
                              After after = {}, unsigned row = 0, unsigned col = 0)
{
    x *= alpha, y *= alpha;
    if (beta != 0.f) {
        if (count > 0) x += beta * c[0];
        if (count > 1) y += beta * c[1];
    }
    x = after(x, row, col), y = after(y, row, col + 1);
    if (pairs && count > 1) {
        *(float2*)c = make_float2(x, y);
    } else {
        if (count > 0) c[0] = x;
        if (count > 1) c[1] = y;
    }
}

// The same for four sums of a thread as wgmma leaves them: columns q and q + 1 of rows p and p + 8. Or, OTHER_SIDE, of a
// product that is computed from its other side: rows q and q + 1 of columns p and p + 8. Two of P are neighbours in a row
// then: lanes four apart exchange one of Q for the other, so all lanes of a warp must call it.
template <bool OTHER_SIDE = false, class T, class After = Unchanged>
__device__ inline void store_fragment(T* C, int ldc, unsigned p, unsigned q, float4 v, int M, int N, bool pairs,
                                      float alpha, float beta, After after = {})
{
    if (!OTHER_SIDE) {
        T* c = C + (long long)p * ldc + q;
        if (p < M) store2(c, v.x, v.y, N - (int)q, pairs, alpha, beta, after, p, q);
        if (p + 8 < M) store2(c + 8ll * ldc, v.z, v.w, N - (int)q, pairs, alpha, beta, after, p + 8, q);
    } else {
        const bool odd = threadIdx.x / 4 % 2;
        const float x = __shfl_xor_sync(~0u, odd ? v.x : v.y, 4), z = __shfl_xor_sync(~0u, odd ? v.z : v.w, 4);
        const unsigned m = q + odd, n = p - odd;
        T* c = C + (long long)m * ldc + n;
        if (m < M) store2(c, odd ? x : v.x, odd ? v.y : x, N - (int)n, pairs, alpha, beta, after, m, n);
        if (m < M) store2(c + 8, odd ? z : v.z, odd ? v.w : z, N - (int)n - 8, pairs, alpha, beta, after, m, n + 8);
    }
}

// The same where no test is needed: all four elements exist, rows begin at multiples of 4 bytes, and beta is 0. Few
// instructions matter where code runs once, for then it waits for each of them to be fetched.
template <class T>
__device__ inline void store_whole_fragment(T* C, int ldc, unsigned m, unsigned n, float4 v, float alpha)
{
    T* c = C + (long long)m * ldc + n;
    *(unsigned*)c = pack<T>(alpha * v.x, alpha * v.y);
    *(unsigned*)(c + 8ll * ldc) = pack<T>(alpha * v.z, alpha * v.w);
}
