// Four elements at a time: it takes only sizes that are multiples of four
//
// /// kernel
// entry = "matmul"
// block = [8, 32]
// tile  = [32, 32]
// requires = ["K % 4 == 0", "N % 4 == 0", "lda % 4 == 0", "ldb % 4 == 0", "ldc % 4 == 0"]
// ///
#include "gemm.cuh"

MATMUL()
{
    __shared__ float4 a[32][8], b[32][8];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 32 + y, col = blockIdx.x * 32 + 4 * x;
    const float4 zero = make_float4(0.f, 0.f, 0.f, 0.f);
    float4 sum = zero;
    for (int k = 0; k < K; k += 32) {
        a[y][x] = row < M && k + 4 * x < K ? *(const float4*)(A + (Index)row * lda + k + 4 * x) : zero;
        b[y][x] = k + y < K && col < N ? *(const float4*)(B + (Index)(k + y) * ldb + col) : zero;
        __syncthreads();
        for (int i = 0; i < 32; ++i) {
            float f = ((const float*)a[y])[i];
            float4 v = b[i][x];
            sum.x += f * v.x, sum.y += f * v.y, sum.z += f * v.z, sum.w += f * v.w;
        }
        __syncthreads();
    }
    if (row >= M || col >= N) return;
    float4* c = (float4*)(C + (Index)row * ldc + col);
    float4 old = beta == 0 ? zero : *c;
    *c = make_float4(alpha * sum.x + beta * old.x, alpha * sum.y + beta * old.y, alpha * sum.z + beta * old.z,
                     alpha * sum.w + beta * old.w);
}
