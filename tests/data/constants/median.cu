// A blur of variable radius; the radius and the weights are set once, by a wrapper with a macro around it.
#include <cuda_runtime.h>
#define CHECK(x) do { if ((x) != cudaSuccess) return; } while (0)
#define MAX_RADIUS 8

__constant__ int radius;
__constant__ float weights[2 * MAX_RADIUS + 1];

__global__ void blur(const unsigned char* in, unsigned char* out, int width, int height)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) {
        float sum = 0.0f;
        for (int dx = -radius; dx <= radius; dx++) {
            int at = min(max(x + dx, 0), width - 1);
            sum += weights[dx + radius] * in[y * width + at];
        }
        out[y * width + x] = (unsigned char)sum;
    }
}

void blurred(const unsigned char* in, unsigned char* out, int width, int height)
{
    int r = 3;
    float w[7] = {0.03f, 0.1f, 0.2f, 0.34f, 0.2f, 0.1f, 0.03f};
    CHECK(cudaMemcpyToSymbol(radius, &r, sizeof(r)));
    CHECK(cudaMemcpyToSymbol(weights, w, sizeof(w)));
    dim3 block(32, 8);
    dim3 grid((width + block.x - 1) / block.x, (height + block.y - 1) / block.y);
    blur<<<grid, block>>>(in, out, width, height);
    CHECK(cudaGetLastError());
}
