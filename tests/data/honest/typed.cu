// One thread an element of 16 bits, summed in float32
//
// /// kernel
// entry = "matmul"
// dtype = ["bf16", "fp16"]
// min_arch = "sm_80"
// block = [16, 16]
// tile  = [16, 16]
// ///
#include "elements.cuh"

extern "C" __global__ void matmul(const ELEMENT* A, const ELEMENT* B, ELEMENT* C, int M, int N, int K, int lda, int ldb,
                                  int ldc, float alpha, float beta)
{
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N) return;
    float sum = 0.f;
    for (int k = 0; k < K; ++k) sum += to_float(A[(long long)row * lda + k]) * to_float(B[(long long)k * ldb + col]);
    store2(C + (long long)row * ldc + col, sum, 0.f, 1, false, alpha, beta);
}
