// Elements of the types that `harness.matmul` multiplies, read as double (code.py, KINDS)
#pragma once

typedef unsigned long long u64;
typedef unsigned int u32;

enum Kind : u32 { FLOAT32, BFLOAT16, FLOAT16 };

__device__ inline double decode(u32 kind, u32 word)
{
    if (kind == FLOAT32) return __uint_as_float(word);
    if (kind == BFLOAT16) return __uint_as_float(word << 16);
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)word));
    return value;
}

__device__ inline u32 word_at(u32 kind, u64 matrix, u64 i)
{
    return kind == FLOAT32 ? ((const u32*)matrix)[i] : ((const unsigned short*)matrix)[i];
}

// Half the distance between adjacent numbers of the type at c.
__device__ inline double half_spacing(double c, int precision, int emin)
{
    const int exponent = (int)((u64)__double_as_longlong(c) >> 52 & 0x7FF) - 1023;
    return __longlong_as_double((u64)(max(exponent, emin) - precision + 1023) << 52);
}

__device__ inline double sum_of_warp(double value)
{
    for (int down = 16; down; down /= 2) value += __shfl_down_sync(~0u, value, down);
    return value;
}
