// 128-bit accesses: four floats at a time, where the rows of a matrix allow it. Used from rung 10 on.
#pragma once

#include "elements.cuh"

// Return true if every row of the matrix begins at a multiple of 16 bytes. A 128-bit access to any other address
// faults, and TMA needs the same for a tensor map. It holds for all rows if the first one begins at such an address
// and the leading dimension is a whole number of 16-byte units.
template <class T>
__device__ inline bool aligned16(const T* matrix, int ld)
{
    return (unsigned long long)matrix % 16 == 0 && ld % (16 / (int)sizeof(T)) == 0;
}

// The same of 8 bytes; elements lie at multiples of their own size.
template <class T>
__device__ inline bool aligned8(const T* matrix, int ld)
{
    return ((unsigned long long)matrix / sizeof(T) | ld) % (8 / sizeof(T)) == 0;
}

// Load the first `count` of four floats. The others become zero, and their memory is not touched.
__device__ inline float4 load4(const float* p, int count)
{
    return make_float4(count > 0 ? p[0] : 0.f, count > 1 ? p[1] : 0.f,
                       count > 2 ? p[2] : 0.f, count > 3 ? p[3] : 0.f);
}

// Store c = after(alpha * sum + beta * c) for the first `count` of four neighbours, of which the first is at (row, col) of
// C, with one instruction if `quads` says that c is aligned to 16 bytes.
// BLAS: with beta == 0, C is output only and may hold NaN; 0 * NaN would let it through.
template <class After = Unchanged>
__device__ inline void store4(float* c, const float* sum, int count, bool quads, float alpha, float beta,
                              After after = {}, unsigned row = 0, unsigned col = 0)
{
    if (quads && count >= 4) {
        float4 v = make_float4(alpha * sum[0], alpha * sum[1], alpha * sum[2], alpha * sum[3]);
        if (beta != 0.f) {
            const float4 old = *(const float4*)c;
            v = make_float4(v.x + beta * old.x, v.y + beta * old.y, v.z + beta * old.z, v.w + beta * old.w);
        }
        *(float4*)c = make_float4(after(v.x, row, col), after(v.y, row, col + 1), after(v.z, row, col + 2),
                                  after(v.w, row, col + 3));
    } else {
        #pragma unroll
        for (int e = 0; e < 4; ++e)
            if (e < count) c[e] = after(beta == 0.f ? alpha * sum[e] : alpha * sum[e] + beta * c[e], row, col + e);
    }
}

// The same for elements of 16 bits: `quads` says that c is aligned to 8 bytes.
template <class T, class After = Unchanged>
__device__ inline void store4(T* c, const float* sum, int count, bool quads, float alpha, float beta,
                              After after = {}, unsigned row = 0, unsigned col = 0)
{
    float v[4];
    #pragma unroll
    for (int e = 0; e < 4; ++e) {
        v[e] = alpha * sum[e];
        if (beta != 0.f && e < count) v[e] += beta * to_float(c[e]);
        v[e] = after(v[e], row, col + e);
    }
    const uint2 words = make_uint2(pack<T>(v[0], v[1]), pack<T>(v[2], v[3]));
    if (quads && count >= 4) {
        *(uint2*)c = words;
    } else {
        #pragma unroll
        for (int e = 0; e < 4; ++e)
            if (e < count) c[e].bits = (e < 2 ? words.x : words.y) >> e % 2 * 16;
    }
}
