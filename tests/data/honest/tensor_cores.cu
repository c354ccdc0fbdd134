// A warp multiplies 16 x 8 elements by mma.sync, in tf32
//
// /// kernel
// entry = "matmul"
// dtype = "tf32"
// min_arch = "sm_80"
// block = 32
// tile  = [16, 8]
// ///
#include "elements.cuh"
#include "gemm.cuh"

MATMUL()
{
    int lane = threadIdx.x, row = blockIdx.y * 16 + lane / 4, col = blockIdx.x * 8;
    float d[4] = {};
    for (int k = 0; k < K; k += 8) {
        unsigned a[4], b[2];
        for (int i = 0; i < 4; ++i) a[i] = operand_bits(at(A, row + i % 2 * 8, k + lane % 4 + i / 2 * 4, M, K, lda));
        for (int i = 0; i < 2; ++i) b[i] = operand_bits(at(B, k + lane % 4 + i * 4, col + lane / 4, K, N, ldb));
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    for (int i = 0; i < 4; ++i)
        put(C, row + i / 2 * 8, col + lane % 4 * 2 + i % 2, M, N, ldc, d[i], alpha, beta);
}
