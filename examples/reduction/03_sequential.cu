// A tree in shared memory over neighbours: no bank conflict
//
// /// kernel
// entry = "reduction"
// problem = "reduction.py:reduction"
// block = "THREADS"
// grid = "(N + THREADS - 1) // THREADS"
// after = "02_interleaved.cu"
// sass = ["BAR", "no LDL"]
// claim = "Active threads are neighbours, and so are the words that they read."
// predict = ["conflicts == 0", "races == 0"]
//
// [params]
// THREADS = [256, 128]
// ///
__global__ void reduction(const float* x, float* total, int N)
{
    __shared__ float held[THREADS];
    int i = blockIdx.x * THREADS + threadIdx.x;
    held[threadIdx.x] = i < N ? x[i] : 0;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) held[threadIdx.x] += held[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicAdd(total, held[0]);
}
