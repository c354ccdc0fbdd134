// A default argument that follows from another one, as PyTorch's kernels have it
#include <cuda_runtime.h>

template <typename T, bool OnGpu> struct AccumulateType { using type = float; };
template <> struct AccumulateType<double, true> { using type = double; };
template <typename T, bool OnGpu> using acc_type = typename AccumulateType<T, OnGpu>::type;

template <typename scalar_t, typename accscalar_t = acc_type<scalar_t, true>, int NT = 2 * 64>
__global__ void row_norm(const scalar_t* in, accscalar_t* out, int rows, int cols)
{
    __shared__ accscalar_t part[NT];
    const int row = blockIdx.x;
    accscalar_t sum = 0;
    for (int c = threadIdx.x; c < cols; c += NT) sum += static_cast<accscalar_t>(in[row * cols + c]) * in[row * cols + c];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int s = NT / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0 && row < rows) out[row] = part[0];
}

void norms(const float* in, float* out, int rows, int cols)
{
    row_norm<float><<<rows, 128>>>(in, out, rows, cols);
}
