// A heat equation whose sizes are __constant__ integers, and no parameters.
#include <stdio.h>
#include <cuda_runtime.h>

__constant__ int NX;
__constant__ int NY;
__constant__ float alpha;

__global__ void step(const float* u, float* v)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = blockIdx.y * blockDim.y + threadIdx.y;
    if (i < 1 || j < 1 || i >= NX - 1 || j >= NY - 1) return;
    int at = j * NX + i;
    v[at] = u[at] + alpha * (u[at - 1] + u[at + 1] + u[at - NX] + u[at + NX] - 4.0f * u[at]);
}

int main(int argc, char** argv)
{
    int nx = atoi(argv[1]), ny = atoi(argv[2]);
    float a = 0.1f;
    cudaMemcpyToSymbol(NX, &nx, sizeof(int));
    cudaMemcpyToSymbol(NY, &ny, sizeof(int), 0, cudaMemcpyHostToDevice);
    cudaMemcpyToSymbol(alpha, &a, sizeof(float));
    float *u, *v;
    cudaMalloc(&u, sizeof(float) * nx * ny);
    cudaMalloc(&v, sizeof(float) * nx * ny);
    dim3 threads(16, 16), blocks((nx + 15) / 16, (ny + 15) / 16);
    step<<<blocks, threads>>>(u, v);
    printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
