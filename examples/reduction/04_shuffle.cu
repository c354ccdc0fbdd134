// Many elements a thread, then shuffles: one word of shared memory a warp
//
// /// kernel
// entry = "reduction"
// problem = "reduction.py:reduction"
// block = "THREADS"
// grid = "(N + THREADS * EACH - 1) // (THREADS * EACH)"
// after = "03_sequential.cu"
// sass = ["SHFL >= 5", "BAR == 1"]
// claim = "One barrier a block, and a tenth of the requests for shared memory."
// predict = ["shared_requests <= 0.1 of 03_sequential.cu", "conflicts == 0", "races == 0"]
//
// [params]
// THREADS = [256, 128]
// EACH = [8, 4, 16]
// ///
__device__ float warp_sum(float value)
{
    for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffff, value, lane);
    return value;
}

__global__ void reduction(const float* x, float* total, int N)
{
    __shared__ float held[THREADS / 32];
    float sum = 0;
    int i = blockIdx.x * THREADS * EACH + threadIdx.x;
    for (int k = 0; k < EACH; ++k, i += THREADS)
        if (i < N) sum += x[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) held[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = warp_sum(threadIdx.x < THREADS / 32 ? held[threadIdx.x] : 0);
        if (threadIdx.x == 0) atomicAdd(total, sum);
    }
}
