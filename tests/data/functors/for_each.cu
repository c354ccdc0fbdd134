// Extended lambdas of host code, passed to a kernel through a function
#include <cuda_runtime.h>

template <class F>
__global__ void for_each_kernel(int n, F f)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) f(i);
}

template <class F>
void for_each(int n, F f)
{
    for_each_kernel<<<(n + 255) / 256, 256>>>(n, f);
}

void saxpy(int n, float a, const float* x, float* y)
{
    for_each(n, [=] __device__(int i) { y[i] = a * x[i] + y[i]; });
}
