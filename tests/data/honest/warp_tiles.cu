// Warps have tiles of their own within the block's
//
// /// kernel
// entry = "matmul"
// block = 128
// tile  = [64, 64]
// 
// [params]
// BK = [8, 16]
// ///
#include "gemm.cuh"

MATMUL()
{
    __shared__ float a[BK][64], b[BK][64];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int wy = warp / 2 * 32 + lane / 4 * 4, wx = warp % 2 * 32 + lane % 4 * 8;
    const int row = blockIdx.y * 64, col = blockIdx.x * 64;
    float sum[4][8] = {};
    for (int k = 0; k < K; k += BK) {
        for (int i = threadIdx.x; i < 64 * BK; i += 128) {
            a[i % BK][i / BK] = at(A, row + i / BK, k + i % BK, M, K, lda);
            b[i / 64][i % 64] = at(B, k + i / 64, col + i % 64, K, N, ldb);
        }
        __syncthreads();
        for (int i = 0; i < BK; ++i)
#pragma unroll
            for (int s = 0; s < 4; ++s)
#pragma unroll
                for (int t = 0; t < 8; ++t) sum[s][t] += a[i][wy + s] * b[i][wx + t];
        __syncthreads();
    }
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
        for (int t = 0; t < 8; ++t) put(C, row + wy + s, col + wx + t, M, N, ldc, sum[s][t], alpha, beta);
}
