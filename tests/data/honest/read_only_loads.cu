// Reads by __ldg, writes by __stcs
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// ///
#include "gemm.cuh"

MATMUL()
{
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N) return;
    const float *a = A + (Index)row * lda, *b = B + col;
    float sum = 0.f;
    for (int k = 0; k < K; ++k, b += ldb) sum += __ldg(a + k) * __ldg(b);
    float* c = C + (Index)row * ldc + col;
    __stcs(c, beta == 0 ? alpha * sum : alpha * sum + beta * __ldcs(c));
}
