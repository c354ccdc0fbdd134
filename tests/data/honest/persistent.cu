// As many blocks as multiprocessors, which go through the tiles
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// grid  = "SMS"
// ///
#include "gemm.cuh"

MATMUL()
{
    int across = (N + 15) / 16, tiles = across * ((M + 15) / 16);
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int row = tile / across * 16 + threadIdx.y, col = tile % across * 16 + threadIdx.x;
        float sum = 0.f;
        for (int k = 0; k < K; ++k) sum += at(A, row, k, M, K, lda) * at(B, k, col, K, N, ldb);
        put(C, row, col, M, N, ldc, sum, alpha, beta);
    }
}
