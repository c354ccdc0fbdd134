// A finite difference in three dimensions: coefficients, strides and sizes in __constant__ memory of a struct.
#include <cuda_runtime.h>
#include <cmath>
#define RADIUS 2

typedef struct {
    int nx, ny, nz;
    int stride_y, stride_z;
} Grid;

__constant__ Grid grid_;
__constant__ float coeff[RADIUS + 1];

__global__ void laplace(const float* __restrict__ u, float* __restrict__ v)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < RADIUS || y < RADIUS || x >= grid_.nx - RADIUS || y >= grid_.ny - RADIUS) return;
    for (int z = RADIUS; z < grid_.nz - RADIUS; z++) {
        int at = z * grid_.stride_z + y * grid_.stride_y + x;
        float sum = 3.0f * coeff[0] * u[at];
        for (int r = 1; r <= RADIUS; r++)
            sum += coeff[r] * (u[at - r] + u[at + r] + u[at - r * grid_.stride_y] + u[at + r * grid_.stride_y] +
                               u[at - r * grid_.stride_z] + u[at + r * grid_.stride_z]);
        v[at] = sum;
    }
}

void launch(float* u, float* v, int nx, int ny, int nz)
{
    Grid g = {nx, ny, nz, nx, nx * ny};
    float h[RADIUS + 1] = {-2.5f, 1.3333f, -0.0833f};
    cudaMemcpyToSymbol(grid_, &g, sizeof(Grid));
    cudaMemcpyToSymbol(coeff, h, sizeof(h));
    dim3 threads(32, 4);
    dim3 blocks((nx + 31) / 32, (ny + 3) / 4);
    laplace<<<blocks, threads>>>(u, v);
}
