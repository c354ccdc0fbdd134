// Clears, adds up and scales in three phases, between which all blocks wait
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// grid  = 4
// cooperative = true
// workspace = "16 + TILES_X * TILES_Y * 256 * 4"
// ///
#include "gemm.cuh"

// All blocks meet; `count` is 0 when the last one has come, and `phase` has changed.
__device__ void meet(unsigned* count, unsigned* phase)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x + threadIdx.y == 0) {
        unsigned now = atomicAdd(phase, 0u);
        if (atomicAdd(count, 1u) == gridDim.x - 1) {
            atomicExch(count, 0u);
            __threadfence();
            atomicAdd(phase, 1u);
        } else {
            while (atomicAdd(phase, 0u) == now) __nanosleep(20);
        }
        __threadfence();
    }
    __syncthreads();
}

MATMUL(, unsigned* state)
{
    volatile float* sums = (volatile float*)(state + 4);
    int across = (N + 15) / 16, tiles = across * ((M + 15) / 16), t = threadIdx.y * 16 + threadIdx.x;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) sums[(Index)tile * 256 + t] = 0.f;
    meet(&state[0], &state[1]);
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int row = tile / across * 16 + threadIdx.y, col = tile % across * 16 + threadIdx.x;
        float sum = 0.f;
        for (int k = 0; k < K; ++k) sum += at(A, row, k, M, K, lda) * at(B, k, col, K, N, ldb);
        sums[(Index)tile * 256 + t] = sum;
    }
    meet(&state[0], &state[1]);
    for (int tile = tiles - 1 - (int)blockIdx.x; tile >= 0; tile -= gridDim.x)
        put(C, tile / across * 16 + threadIdx.y, tile % across * 16 + threadIdx.x, M, N, ldc,
            sums[(Index)tile * 256 + t], alpha, beta);
}
