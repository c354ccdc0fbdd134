// Blocks take tiles from a counter that wraps to zero with the last block that asks
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// grid  = "SMS"
// workspace = 4
// ///
#include "gemm.cuh"

MATMUL(, unsigned* counter)
{
    __shared__ unsigned mine;
    int across = (N + 15) / 16, tiles = across * ((M + 15) / 16);
    for (;;) {
        if (threadIdx.x + threadIdx.y == 0) mine = atomicInc(counter, tiles + gridDim.x - 1);
        __syncthreads();
        int tile = mine;
        __syncthreads();
        if (tile >= tiles) return;
        int row = tile / across * 16 + threadIdx.y, col = tile % across * 16 + threadIdx.x;
        float sum = 0.f;
        for (int k = 0; k < K; ++k) sum += at(A, row, k, M, K, lda) * at(B, k, col, K, N, ldb);
        put(C, row, col, M, N, ldc, sum, alpha, beta);
    }
}
