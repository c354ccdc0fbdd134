// A cooperative launch whose arguments are a std::array, and a default that is a macro's value
#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <array>
namespace cg = cooperative_groups;
#define WIDTH 64

template <int N = WIDTH * 2, typename T = float>
__global__ void prefix(T* x, T* sums, int n)
{
    cg::grid_group grid = cg::this_grid();
    __shared__ T tile[N];
    const int i = blockIdx.x * N + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : T(0);
    __syncthreads();
    for (int d = 1; d < N; d *= 2) {
        T other = threadIdx.x >= d ? tile[threadIdx.x - d] : T(0);
        __syncthreads();
        tile[threadIdx.x] += other;
        __syncthreads();
    }
    if (threadIdx.x == N - 1) sums[blockIdx.x] = tile[N - 1];
    grid.sync();
    T before = 0;
    for (int b = 0; b < blockIdx.x; b++) before += sums[b];
    if (i < n) x[i] = tile[threadIdx.x] + before;
}

void run(float* x, float* sums, int n)
{
    std::array<void*, 3> args = {&x, &sums, &n};
    cudaLaunchCooperativeKernel((void*)prefix<>, dim3((n + 127) / 128), dim3(128), args.data(), 0, nullptr);
}
