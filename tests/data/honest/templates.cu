// Written with templates, a class and a constexpr if
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// 
// [params]
// STEP = [4, 1]
// ///
#include "gemm.cuh"

template <int ROWS, int COLUMNS> class Tile {
    float data[ROWS][COLUMNS];

public:
    __device__ float& operator()(int i, int j) { return data[i][j]; }
    template <typename F> __device__ void fill(F value)
    {
        for (int i = threadIdx.y; i < ROWS; i += 16)
            for (int j = threadIdx.x; j < COLUMNS; j += 16) data[i][j] = value(i, j);
    }
};

template <int N> __device__ float dot(Tile<16, 16>& a, Tile<16, 16>& b, int from)
{
    float sum = 0.f;
    if constexpr (N > 1) {
        sum = dot<N / 2>(a, b, from) + dot<N - N / 2>(a, b, from + N / 2);
    } else {
        sum = a(threadIdx.y, from) * b(from, threadIdx.x);
    }
    return sum;
}

MATMUL()
{
    __shared__ Tile<16, 16> a, b;
    int row = blockIdx.y * 16, col = blockIdx.x * 16;
    float sum = 0.f;
    for (int k = 0; k < K; k += 16) {
        a.fill([&](int i, int j) { return at(A, row + i, k + j, M, K, lda); });
        b.fill([&](int i, int j) { return at(B, k + i, col + j, K, N, ldb); });
        __syncthreads();
        for (int i = 0; i < 16; i += STEP) sum += dot<STEP>(a, b, i);
        __syncthreads();
    }
    put(C, row + threadIdx.y, col + threadIdx.x, M, N, ldc, sum, alpha, beta);
}
