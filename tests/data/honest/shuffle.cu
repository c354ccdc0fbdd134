// A warp passes the elements of A around by shuffles
//
// /// kernel
// entry = "matmul"
// block = [32, 4]
// tile  = [4, 32]
// ///
#include "gemm.cuh"

MATMUL()
{
    int lane = threadIdx.x, row = blockIdx.y * 4 + threadIdx.y, col = blockIdx.x * 32 + lane;
    float sum = 0.f;
    for (int k = 0; k < K; k += 32) {
        float a = at(A, row, k + lane, M, K, lda);
        for (int i = 0; i < 32; ++i) sum += __shfl_sync(0xFFFFFFFFu, a, i) * at(B, k + i, col, K, N, ldb);
    }
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
