// A block a row, reduced through shared memory
//
// /// kernel
// entry = "softmax<THREADS>"
// problem = "softmax.py:softmax"
// block = "THREADS"
// grid = "M"
// after = "01_naive.cu"
// sass = ["BAR >= 2", "no LDL"]
// claim = "Neighbouring threads read neighbouring elements."
// predict = ["sectors_per_request <= 5", "conflicts == 0", "races == 0"]
//
// [params]
// THREADS = [128, 64, 256]
// ///
#include <math.h>

// Return op over the values of all threads, to each of them.
template <int T, class Op>
__device__ float reduced(float value, Op op)
{
    __shared__ float held[T];
    __syncthreads();  // the values of the reduction before have been read
    held[threadIdx.x] = value;
    for (int half = T / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) held[threadIdx.x] = op(held[threadIdx.x], held[threadIdx.x + half]);
    }
    __syncthreads();
    return held[0];
}

template <int T>
__global__ void softmax(const float* x, float* y, int M, int N)
{
    x += (size_t)blockIdx.x * N;
    y += (size_t)blockIdx.x * N;
    float top = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < N; i += T) top = fmaxf(top, x[i]);
    top = reduced<T>(top, [](float a, float b) { return fmaxf(a, b); });
    for (int i = threadIdx.x; i < N; i += T) sum += expf(x[i] - top);
    sum = reduced<T>(sum, [](float a, float b) { return a + b; });
    for (int i = threadIdx.x; i < N; i += T) y[i] = expf(x[i] - top) / sum;
}
