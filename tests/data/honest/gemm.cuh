// What the kernels of this folder share: the arguments of a gemm, bounds, and how an element is written.
#pragma once

typedef long long Index;

#define MATMUL(...)                                                                                     \
    extern "C" __global__ void matmul(const float* __restrict__ A, const float* __restrict__ B,         \
                                      float* __restrict__ C, int M, int N, int K, int lda, int ldb,     \
                                      int ldc, float alpha, float beta __VA_ARGS__)

// Element (i, j) of a matrix, 0 outside of it.
__device__ __forceinline__ float at(const float* x, int i, int j, int rows, int columns, int ld)
{
    return i < rows && j < columns ? x[(Index)i * ld + j] : 0.f;
}

__device__ __forceinline__ void put(float* C, int i, int j, int M, int N, int ldc, float sum, float alpha, float beta)
{
    if (i >= M || j >= N) return;
    float* c = C + (Index)i * ldc + j;
    *c = beta == 0 ? alpha * sum : alpha * sum + beta * *c;
}
