// A pack of template parameters: a sum over any number of arrays
#include <cuda_runtime.h>

template <typename T, typename... Rest>
__device__ T total(int i, const T* first, const Rest*... rest)
{
    if constexpr (sizeof...(rest) == 0) return first[i];
    else return first[i] + total(i, rest...);
}

template <typename T, typename... Inputs>
__global__ void add_all(int n, T* out, const Inputs*... inputs)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = total(i, inputs...);
}

void run(int n, float* out, const float* a, const float* b, const float* c)
{
    add_all<<<(n + 127) / 128, 128>>>(n, out, a, b, c);
}
