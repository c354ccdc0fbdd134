// cudaLaunchKernel with arguments that are set one by one, through a pointer to void
#include <cuda_runtime.h>

__global__ void add(const float* a, const float* b, float* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}

__global__ void shifted(const float* a, float* out, int n, int shift)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = i >= shift ? a[i - shift] : 0.0f;
}

cudaError_t run(float* a, float* b, float* out, int n, cudaStream_t stream)
{
    int shift = 3;
    void* args[4];
    args[0] = &a;
    args[1] = &b;
    args[2] = (void*)&out;
    args[3] = &n;
    dim3 grid((n + 191) / 192), block(192);
    const void* function = reinterpret_cast<const void*>(&add);
    cudaLaunchKernel(function, grid, block, args, 0, stream);
    void** more = new void*[4]{&a, &out, &n, &shift};
    return cudaLaunchKernel((const void*)shifted, dim3((n + 95) / 96), dim3(96), more, 0, stream);
}
