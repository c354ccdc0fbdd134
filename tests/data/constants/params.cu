// Particles in cells: everything is in a __constant__ struct, as in the particle samples.
#include <cuda_runtime.h>

struct SimParams {
    int numBodies;
    int gridSize;
    float cellSize;
    float3 origin;
    float damping;
};

__constant__ SimParams params;

__global__ void hash(const float3* pos, int* cell, int* count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= params.numBodies) return;
    float3 p = pos[i];
    int gx = (int)floorf((p.x - params.origin.x) / params.cellSize) & (params.gridSize - 1);
    int gy = (int)floorf((p.y - params.origin.y) / params.cellSize) & (params.gridSize - 1);
    int at = gy * params.gridSize + gx;
    cell[i] = at;
    atomicAdd(&count[at], 1);
}

void setParameters(SimParams* host)
{
    cudaMemcpyToSymbol(params, host, sizeof(SimParams));
}

void run(int n)
{
    SimParams h;
    h.numBodies = n;
    h.gridSize = 64;
    h.cellSize = 0.5f;
    h.damping = 1.0f;
    setParameters(&h);
    float3* pos;
    int *cell, *count;
    cudaMalloc(&pos, n * sizeof(float3));
    cudaMalloc(&cell, n * sizeof(int));
    cudaMalloc(&count, 64 * 64 * sizeof(int));
    cudaMemset(count, 0, 64 * 64 * sizeof(int));
    hash<<<(n + 255) / 256, 256>>>(pos, cell, count);
}
