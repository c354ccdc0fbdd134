// Each warp has a tile of its own in shared memory, and needs no barrier of the block
//
// /// kernel
// entry = "matmul"
// block = [32, 4]
// tile  = [4, 32]
// ///
#include "gemm.cuh"

MATMUL()
{
    __shared__ float a[4][32];
    int lane = threadIdx.x, warp = threadIdx.y, row = blockIdx.y * 4 + warp, col = blockIdx.x * 32 + lane;
    float sum = 0.f;
    for (int k = 0; k < K; k += 32) {
        a[warp][lane] = at(A, row, k + lane, M, K, lda);
        __syncwarp();
        for (int i = 0; i < 32; ++i) sum += a[warp][i] * at(B, k + i, col, K, N, ldb);
        __syncwarp();
    }
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
