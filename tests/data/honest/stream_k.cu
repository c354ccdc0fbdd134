// Blocks have equal shares of all steps; parts wait in variables of the module, behind semaphores
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// grid  = "BLOCKS"
// 
// [params]
// BLOCKS = 5
// ///
#include "gemm.cuh"

__device__ float parts[BLOCKS][256];
__device__ unsigned ready[BLOCKS];  // 1 while a part waits; whoever takes it sets it back

MATMUL()
{
    int t = threadIdx.y * 16 + threadIdx.x, across = (N + 15) / 16, tiles = across * ((M + 15) / 16);
    int steps = (K + 15) / 16, all = tiles * steps, each = (all + BLOCKS - 1) / BLOCKS;
    int end = min(all, (int)(blockIdx.x + 1) * each);
    // From the last step down, so that whoever waits waits for blocks that have begun with their part.
    for (int at_step = end, begin = min(all, (int)blockIdx.x * each); at_step > begin;) {
        int tile = (at_step - 1) / steps, first = max(begin, tile * steps);
        int row = tile / across * 16 + threadIdx.y, col = tile % across * 16 + threadIdx.x;
        float sum = 0.f;
        for (int k = (first - tile * steps) * 16; k < min(K, (at_step - tile * steps) * 16); ++k)
            sum += at(A, row, k, M, K, lda) * at(B, k, col, K, N, ldb);
        if (first > tile * steps) {  // not its beginning: a part for the block that has it
            parts[blockIdx.x][t] = sum;
            __threadfence();
            __syncthreads();
            if (t == 0) atomicExch(&ready[blockIdx.x], 1u);
        } else {
            for (int other = blockIdx.x + 1; other * each < (tile + 1) * steps && other < BLOCKS; ++other) {
                if (t == 0)
                    while (atomicAdd(&ready[other], 0u) == 0) {}
                __syncthreads();
                __threadfence();
                sum += ((volatile float*)parts[other])[t];
                __syncthreads();
                if (t == 0) atomicExch(&ready[other], 0u);
            }
            put(C, row, col, M, N, ldc, sum, alpha, beta);
        }
        at_step = first;
    }
}
