// (n + 1) * n numbers of dynamic shared memory: a padded tile of as many rows as the block has threads
#include <cuda_runtime.h>

__global__ void solve(const float* a, const float* b, float* x, int n)
{
    extern __shared__ float tile[];
    const int r = threadIdx.x;
    const float* own = a + (size_t)blockIdx.x * n * n;
    for (int c = 0; c < n; c++) tile[r * (n + 1) + c] = own[r * n + c];
    tile[r * (n + 1) + n] = b[blockIdx.x * n + r];
    __syncthreads();
    for (int k = 0; k < n; k++) {
        const float factor = r == k ? 0.0f : tile[r * (n + 1) + k] / tile[k * (n + 1) + k];
        __syncthreads();
        for (int c = k; c <= n && r != k; c++) tile[r * (n + 1) + c] -= factor * tile[k * (n + 1) + c];
        __syncthreads();
    }
    x[blockIdx.x * n + r] = tile[r * (n + 1) + n] / tile[r * (n + 1) + r];
}

void batched(const float* a, const float* b, float* x, int n, int count)
{
    const size_t bytes = (n + 1) * n * sizeof(float);
    solve<<<count, n, bytes>>>(a, b, x, n);
}
