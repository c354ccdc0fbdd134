// Makes names by pasting tokens, and has comments in inline assembly
//
// /// kernel
// entry = "matmul"
// block = [16, 16]
// tile  = [16, 16]
// ///
#include "gemm.cuh"

#define PASTED(a, b) a##b

MATMUL()
{
    int PASTED(ro, w) = blockIdx.y * 16 + threadIdx.y, PASTED(co, l) = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k)
        asm("{ // a product /* and a sum */\n fma.rn.f32 %0, %1, %2, %0; /* rounded once */ }"
            : "+f"(sum) : "f"(A[(Index)row * lda + k]), "f"(B[(Index)k * ldb + col]));
    put(C, row, col, M, N, ldc, sum, alpha, beta);
}
