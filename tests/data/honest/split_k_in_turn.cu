// Blocks share k, and add to the sum one after the other, each when it is its turn
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// grid  = ["TILES_X", "TILES_Y", "SPLIT"]
// workspace = "TILES_X * TILES_Y * 257 * 4"
//
// [params]
// SPLIT = [2, 4]
// ///
#include "gemm.cuh"

MATMUL(, float* sums)
{
    int tile = blockIdx.y * gridDim.x + blockIdx.x, tiles = gridDim.x * gridDim.y;
    int t = threadIdx.y * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    unsigned* turn = (unsigned*)(sums + (Index)tiles * 256) + tile;
    int part = (K + SPLIT - 1) / SPLIT, from = blockIdx.z * part, to = min(K, from + part);
    float sum = 0.f;
    for (int k = from; k < to; ++k) sum += at(A, row, k, M, K, lda) * at(B, k, col, K, N, ldb);
    if (t == 0)
        while (atomicAdd(turn, 0u) != blockIdx.z) {}
    __syncthreads();
    __threadfence();
    volatile float* mine = sums + (Index)tile * 256 + t;
    if (blockIdx.z) sum += *mine;
    if (blockIdx.z == SPLIT - 1) {
        put(C, row, col, M, N, ldc, sum, alpha, beta);
        if (t == 0) atomicExch(turn, 0u);
        return;
    }
    *mine = sum;
    __threadfence();
    __syncthreads();
    if (t == 0) atomicExch(turn, blockIdx.z + 1);
}
