// Blocks share k; the last one to arrive adds up the parts, in order
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// grid  = ["TILES_X", "TILES_Y", "SPLIT"]
// workspace = "TILES_X * TILES_Y * (SPLIT * 256 + 1) * 4"
// 
// [params]
// SPLIT = [3, 2]
// ///
#include "gemm.cuh"

MATMUL(, float* parts)
{
    __shared__ unsigned before;
    int tile = blockIdx.y * gridDim.x + blockIdx.x, tiles = gridDim.x * gridDim.y;
    int t = threadIdx.y * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    unsigned* arrived = (unsigned*)(parts + (Index)tiles * SPLIT * 256);
    int part = (K + SPLIT - 1) / SPLIT, from = blockIdx.z * part, to = min(K, from + part);
    float sum = 0.f;
    for (int k = from; k < to; ++k) sum += at(A, row, k, M, K, lda) * at(B, k, col, K, N, ldb);
    parts[((Index)tile * SPLIT + blockIdx.z) * 256 + t] = sum;
    __threadfence();
    __syncthreads();
    if (t == 0) before = atomicAdd(&arrived[tile], 1u);
    __syncthreads();
    if (before != SPLIT - 1) return;
    __threadfence();
    sum = 0.f;
    for (int s = 0; s < SPLIT; ++s) sum += ((volatile float*)parts)[((Index)tile * SPLIT + s) * 256 + t];
    put(C, row, col, M, N, ldc, sum, alpha, beta);
    if (t == 0) atomicExch(&arrived[tile], 0u);
}
