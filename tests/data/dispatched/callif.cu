template <const int THREADS, const int PER_THREAD>
__global__ void scale(const float* x, float* y, int n)
{
    int first = blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
    for (int i = 0; i < PER_THREAD; i++) {
        int at = first + i * THREADS;
        if (at < n) y[at] = 2 * x[at];
    }
}
#define CALL_IF(THREADS_, PER)                                                    \
    else if (threads == THREADS_ && per == PER) {                                 \
        cudaFuncSetAttribute(scale<THREADS_, PER>, cudaFuncAttributePreferredSharedMemoryCarveout, 0); \
        scale<THREADS_, PER><<<(n + THREADS_ * PER - 1) / (THREADS_ * PER), THREADS_, 0, stream>>>(x, y, n); \
    }
int run(const float* x, float* y, int n, int threads, int per, cudaStream_t stream)
{
    if (n == 0) return 0;
    CALL_IF(128, 2)
    CALL_IF(64, 4)
    else return 1;
    return 0;
}
