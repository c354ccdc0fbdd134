// D2Q9 of a lattice Boltzmann solver: directions and opposites are __constant__ tables.
#include <cuda_runtime.h>
#include <iostream>

__constant__ int cx[9];
__constant__ int cy[9];
__constant__ int opposite[9];
__constant__ float w[9];

__global__ void stream(const float* __restrict__ f, float* __restrict__ out, const char* __restrict__ solid,
                       int nx, int ny)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= nx || y >= ny) return;
    int n = nx * ny;
    for (int k = 0; k < 9; k++) {
        int xs = (x - cx[k] + nx) % nx;
        int ys = (y - cy[k] + ny) % ny;
        int from = ys * nx + xs;
        float value = solid[from] ? f[opposite[k] * n + y * nx + x] : f[k * n + from];
        out[k * n + y * nx + x] = value + 0.1f * w[k];
    }
}

int main()
{
    const int h_cx[9] = {0, 1, 0, -1, 0, 1, -1, -1, 1};
    const int h_cy[9] = {0, 0, 1, 0, -1, 1, 1, -1, -1};
    const int h_opposite[9] = {0, 3, 4, 1, 2, 7, 8, 5, 6};
    const float h_w[9] = {4.f / 9, 1.f / 9, 1.f / 9, 1.f / 9, 1.f / 9, 1.f / 36, 1.f / 36, 1.f / 36, 1.f / 36};
    cudaMemcpyToSymbol(cx, h_cx, sizeof(h_cx));
    cudaMemcpyToSymbol(cy, h_cy, sizeof(h_cy));
    cudaMemcpyToSymbol(opposite, h_opposite, sizeof(h_opposite));
    cudaMemcpyToSymbol(w, h_w, sizeof(h_w));
    int nx = 512, ny = 256;
    float *f, *g;
    char* solid;
    cudaMalloc(&f, 9 * nx * ny * sizeof(float));
    cudaMalloc(&g, 9 * nx * ny * sizeof(float));
    cudaMalloc(&solid, nx * ny);
    dim3 block(16, 16);
    dim3 grid((nx + 15) / 16, (ny + 15) / 16);
    for (int t = 0; t < 100; t++) {
        stream<<<grid, block>>>(f, g, solid, nx, ny);
        std::swap(f, g);
    }
    std::cout << cudaGetLastError() << "\n";
}
