// multi_tensor_apply: a struct with arrays of pointers and sizes, and a functor with further arguments
#include <cuda_runtime.h>

constexpr int MAX_TENSORS = 24, MAX_BLOCKS = 320;

template <int N>
struct TensorList {
    float* addresses[N][MAX_TENSORS];
    int sizes[MAX_TENSORS];
    unsigned char block_to_tensor[MAX_BLOCKS];
    int block_to_chunk[MAX_BLOCKS];
};

template <int N>
struct AxpbyFunctor {
    __device__ void operator()(int chunk_size, volatile int* noop, TensorList<N>& list, float a, float b)
    {
        const int tensor = list.block_to_tensor[blockIdx.x];
        const int chunk = list.block_to_chunk[blockIdx.x];
        const int n = list.sizes[tensor] - chunk * chunk_size;
        float* x = list.addresses[0][tensor] + chunk * chunk_size;
        float* y = list.addresses[1][tensor] + chunk * chunk_size;
        float* out = list.addresses[2][tensor] + chunk * chunk_size;
        for (int i = threadIdx.x; i < n && i < chunk_size; i += blockDim.x) out[i] = a * x[i] + b * y[i];
    }
};

template <typename T, typename U, typename... ArgTypes>
__global__ void multi_tensor_apply_kernel(int chunk_size, volatile int* noop_flag, T list, U callable, ArgTypes... args)
{
    callable(chunk_size, noop_flag, list, args...);
}

template <int N, typename T, typename... ArgTypes>
void multi_tensor_apply(int chunk_size, int* noop_flag, const int* sizes, float*** tensors, int count, T callable,
                        ArgTypes... args)
{
    TensorList<N> list;
    int blocks = 0;
    for (int t = 0; t < count; t++) {
        list.sizes[t] = sizes[t];
        for (int d = 0; d < N; d++) list.addresses[d][t] = tensors[d][t];
        for (int c = 0; c * chunk_size < sizes[t]; c++) {
            list.block_to_tensor[blocks] = t;
            list.block_to_chunk[blocks++] = c;
        }
    }
    multi_tensor_apply_kernel<<<blocks, 256>>>(chunk_size, noop_flag, list, callable, args...);
}

void axpby(int chunk_size, int* noop_flag, const int* sizes, float*** tensors, int count, float a, float b)
{
    multi_tensor_apply<3>(chunk_size, noop_flag, sizes, tensors, count, AxpbyFunctor<3>(), a, b);
}
