// Its multiplications, loads and stores are inline PTX
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
    for (int k = 0; k < K; ++k, ++a, b += ldb) {
        float x, y;
        asm("ld.global.nc.f32 %0, [%1];" : "=f"(x) : "l"(a));
        asm("ld.global.nc.f32 %0, [%1];" : "=f"(y) : "l"(b));
        asm("fma.rn.f32 %0, %1, %2, %0;" : "+f"(sum) : "f"(x), "f"(y));
    }
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
