// One thread an element, along rows or along columns
//
// /// kernel
// entry = "matmul"
// block = ["BX", "BY"]
// tile  = ["COALESCED * BY + (1 - COALESCED) * BX", "COALESCED * BX + (1 - COALESCED) * BY"]
// 
// [params]
// BX = [32, 16, 64]
// BY = [8, 16, 4]
// COALESCED = [1, 0]
// ///
#include "gemm.cuh"

MATMUL()
{
    int x = blockIdx.x * (COALESCED ? BX : BY) + (COALESCED ? threadIdx.x : threadIdx.y);
    int y = blockIdx.y * (COALESCED ? BY : BX) + (COALESCED ? threadIdx.y : threadIdx.x);
    if (x >= N || y >= M) return;
    float sum = 0.f;
    for (int k = 0; k < K; ++k) sum += A[(Index)y * lda + k] * B[(Index)k * ldb + x];
    put(C, y, x, M, N, ldc, sum, alpha, beta);
}
