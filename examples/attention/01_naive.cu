// A thread a row of Q, with the softmax in one pass
//
// /// kernel
// entry = "attention"
// problem = "attention.py:attention"
// block = 32
// grid = "(M + 31) // 32"
// sass = ["FFMA >= 64", "no LDL"]
// claim = "Every thread reads all of K and V from global memory."
// predict = ["shared_requests == 0", "races == 0"]
// ///
#include <math.h>

__global__ void attention(const float* Q, const float* K, const float* V, float* O, int M, int N)
{
    int row = blockIdx.x * 32 + threadIdx.x;
    if (row >= M) return;
    float q[32], o[32] = {}, top = -INFINITY, sum = 0;
    for (int d = 0; d < 32; ++d) q[d] = Q[row * 32 + d] * 0.17677669529f;  // 1 / sqrt(32)
    for (int j = 0; j < N; ++j) {
        float score = 0;
        for (int d = 0; d < 32; ++d) score += q[d] * K[j * 32 + d];
        float next = fmaxf(top, score), keep = expf(top - next), weight = expf(score - next);
        sum = sum * keep + weight;
        for (int d = 0; d < 32; ++d) o[d] = o[d] * keep + weight * V[j * 32 + d];
        top = next;
    }
    for (int d = 0; d < 32; ++d) O[row * 32 + d] = o[d] / sum;
}
