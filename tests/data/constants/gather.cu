// A table of places in __constant__ memory, computed by a loop of the host; cudaGetSymbolAddress and cudaMemcpy.
#include <cuda_runtime.h>
#include <vector>

#define FEATURES 24
#define STRIDE 5

__constant__ int d_columns[FEATURES];
__constant__ unsigned int d_count;

__global__ void pick(const float* __restrict__ table, float* __restrict__ out, int rows)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    for (unsigned int k = 0; k < d_count; k++)
        out[row * FEATURES + k] = table[row * (FEATURES * STRIDE) + d_columns[k]];
}

int main()
{
    int rows = 4096;
    unsigned int count = FEATURES;
    int columns[FEATURES];
    for (int i = 0; i < FEATURES; i++) columns[i] = i * STRIDE + 4;
    void* address;
    cudaGetSymbolAddress(&address, d_columns);
    cudaMemcpy(address, columns, sizeof(columns), cudaMemcpyHostToDevice);
    cudaMemcpyToSymbolAsync(d_count, &count, sizeof(count), 0, cudaMemcpyHostToDevice, 0);
    float *table, *out;
    cudaMalloc(&table, rows * FEATURES * STRIDE * sizeof(float));
    cudaMalloc(&out, rows * FEATURES * sizeof(float));
    pick<<<(rows + 127) / 128, 128>>>(table, out, rows);
    return cudaDeviceSynchronize();
}
