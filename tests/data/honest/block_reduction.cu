// A block adds up one element, in a tree in shared memory
//
// /// kernel
// entry = "matmul"
// block = 128
// tile  = [1, 1]
// ///
#include "gemm.cuh"

MATMUL()
{
    __shared__ float part[128];
    int row = blockIdx.y, col = blockIdx.x, t = threadIdx.x;
    float sum = 0.f;
    for (int k = t; k < K; k += 128) sum += A[(Index)row * lda + k] * B[(Index)k * ldb + col];
    part[t] = sum;
    __syncthreads();
    for (int half = 64; half; half /= 2) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0) put(C, row, col, M, N, ldc, part[0], alpha, beta);
}
