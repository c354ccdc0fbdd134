// A tree in shared memory, whose threads drift apart: bank conflicts
//
// /// kernel
// entry = "reduction"
// problem = "reduction.py:reduction"
// block = "THREADS"
// grid = "(N + THREADS - 1) // THREADS"
// after = "01_atomic.cu"
// sass = ["BAR", "no LDL"]
// claim = "One atomic addition a block. Threads 2s words apart share banks."
// predict = ["conflicts > 0", "races == 0", "global_requests <= 0.7 of 01_atomic.cu"]
//
// [params]
// THREADS = [256, 128]
// ///
__global__ void reduction(const float* x, float* total, int N)
{
    __shared__ float held[THREADS];
    int i = blockIdx.x * THREADS + threadIdx.x;
    held[threadIdx.x] = i < N ? x[i] : 0;
    for (int s = 1; s < THREADS; s *= 2) {
        __syncthreads();
        int at = 2 * s * threadIdx.x;
        if (at < THREADS) held[at] += held[at + s];
    }
    if (threadIdx.x == 0) atomicAdd(total, held[0]);
}
