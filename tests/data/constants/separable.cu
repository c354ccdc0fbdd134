// A separable convolution: the filter is a __constant__ array that the host copies by cudaMemcpyToSymbol.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define KERNEL_RADIUS 4
#define KERNEL_LENGTH (2 * KERNEL_RADIUS + 1)
#define TILE 128

__constant__ float c_Kernel[KERNEL_LENGTH];

__global__ void rows(float *d_Dst, const float *d_Src, int imageW, int imageH)
{
    __shared__ float line[TILE + 2 * KERNEL_RADIUS];
    const int x0 = blockIdx.x * TILE, y = blockIdx.y;
    const float *src = d_Src + (size_t)y * imageW;
    for (int i = threadIdx.x; i < TILE + 2 * KERNEL_RADIUS; i += blockDim.x) {
        int x = x0 + i - KERNEL_RADIUS;
        line[i] = x >= 0 && x < imageW ? src[x] : 0.0f;
    }
    __syncthreads();
    const int x = x0 + threadIdx.x;
    if (x >= imageW) return;
    float sum = 0.0f;
    for (int j = -KERNEL_RADIUS; j <= KERNEL_RADIUS; j++)
        sum += c_Kernel[KERNEL_RADIUS - j] * line[threadIdx.x + KERNEL_RADIUS + j];
    d_Dst[(size_t)y * imageW + x] = sum;
}

void setConvolutionKernel(float *h_Kernel)
{
    cudaMemcpyToSymbol(c_Kernel, h_Kernel, KERNEL_LENGTH * sizeof(float));
}

int main()
{
    const int imageW = 1920, imageH = 1080;
    float *h_Kernel = (float *)malloc(KERNEL_LENGTH * sizeof(float));
    for (int i = 0; i < KERNEL_LENGTH; i++) h_Kernel[i] = (float)(rand() % 16);
    float *d_Input, *d_Output;
    cudaMalloc((void **)&d_Input, imageW * imageH * sizeof(float));
    cudaMalloc((void **)&d_Output, imageW * imageH * sizeof(float));
    setConvolutionKernel(h_Kernel);
    rows<<<dim3((imageW + TILE - 1) / TILE, imageH), TILE>>>(d_Output, d_Input, imageW, imageH);
    cudaDeviceSynchronize();
    return 0;
}
