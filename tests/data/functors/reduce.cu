// A reduction with a binary operator that is a lambda
#include <cuda_runtime.h>
#include <cfloat>

template <int BLOCK, typename T, typename Op>
__global__ void reduce(const T* in, T* out, int n, T init, Op op)
{
    __shared__ T part[BLOCK];
    T value = init;
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < n; i += gridDim.x * BLOCK) value = op(value, in[i]);
    part[threadIdx.x] = value;
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] = op(part[threadIdx.x], part[threadIdx.x + step]);
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

void maximum(const float* in, float* partial, int n)
{
    const int blocks = 64;
    auto larger = [] __host__ __device__(float a, float b) { return a > b ? a : b; };
    reduce<256><<<blocks, 256>>>(in, partial, n, -FLT_MAX, larger);
}
