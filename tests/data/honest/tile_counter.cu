// Blocks take tiles from a counter in the workspace, which the last one sets back
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// grid  = "SMS"
// workspace = 16
// ///
#include "gemm.cuh"

MATMUL(, unsigned* counters)
{
    __shared__ unsigned mine;
    int across = (N + 15) / 16, tiles = across * ((M + 15) / 16);
    while (true) {
        if (threadIdx.x + threadIdx.y == 0) mine = atomicAdd(&counters[0], 1u);
        __syncthreads();
        int tile = mine;
        __syncthreads();
        if (tile >= tiles) break;
        int row = tile / across * 16 + threadIdx.y, col = tile % across * 16 + threadIdx.x;
        float sum = 0.f;
        for (int k = 0; k < K; ++k) sum += at(A, row, k, M, K, lda) * at(B, k, col, K, N, ldb);
        put(C, row, col, M, N, ldc, sum, alpha, beta);
    }
    if (threadIdx.x + threadIdx.y == 0 && atomicAdd(&counters[1], 1u) == gridDim.x - 1) {
        atomicExch(&counters[0], 0u);
        atomicExch(&counters[1], 0u);
    }
}
