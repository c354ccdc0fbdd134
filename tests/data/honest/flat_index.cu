// A row and a column from one linear index, with a division
//
// /// kernel
// entry = "matmul"
// block = 256
// tile  = [16, 16]
// ///
#include "gemm.cuh"

MATMUL()
{
    Index tile = (Index)blockIdx.y * gridDim.x + blockIdx.x;
    Index first = tile * 256 + threadIdx.x, step = (Index)gridDim.x * gridDim.y * 256;
    for (Index i = first; i < (Index)M * N; i += step) {
        int row = i / N, col = i % N;
        float sum = 0.f;
        for (int k = 0; k < K; ++k) sum = fmaf(A[(Index)row * lda + k], B[(Index)k * ldb + col], sum);
        put(C, row, col, M, N, ldc, sum, alpha, beta);
    }
}
