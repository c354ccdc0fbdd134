// A functor class of a template with pointers in it
#include <cuda_runtime.h>

template <typename T>
struct Gather {
    const T* table;
    const int* index;
    T* out;
    __device__ void operator()(int i) const { out[i] = table[index[i]]; }
};

template <typename Body>
__global__ void __launch_bounds__(256) parallel_for(Body body, int count)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) body(i);
}

void gather(const float* table, const int* index, float* out, int count)
{
    Gather<float> body{table, index, out};
    parallel_for<<<(count + 255) / 256, 256>>>(body, count);
}
