// Tiles of K and V in shared memory, for all rows of a block
//
// /// kernel
// entry = "attention"
// problem = "attention.py:attention"
// block = "ROWS"
// grid = "(M + ROWS - 1) // ROWS"
// after = "01_naive.cu"
// sass = ["LDS.128 in loop", "BAR >= 2", "no LDL"]
// claim = "K and V are read once for each block, not for each warp's row."
// predict = ["global_requests <= 0.4 of 01_naive.cu", "conflicts == 0", "races == 0"]
//
// [params]
// ROWS = [64, 32, 128]
// ///
#include <math.h>

__global__ void attention(const float* Q, const float* K, const float* V, float* O, int M, int N)
{
    __shared__ __align__(16) float k[32][32], v[32][32];
    int row = blockIdx.x * ROWS + threadIdx.x;
    float q[32], o[32] = {}, top = -INFINITY, sum = 0;
    for (int d = 0; d < 32; ++d) q[d] = row < M ? Q[row * 32 + d] * 0.17677669529f : 0;  // 1 / sqrt(32)
    for (int first = 0; first < N; first += 32) {
        int count = min(32, N - first);
        __syncthreads();  // the tiles before have been read
        for (int i = threadIdx.x; i < count * 32; i += ROWS) {
            k[i / 32][i % 32] = K[first * 32 + i];
            v[i / 32][i % 32] = V[first * 32 + i];
        }
        __syncthreads();
        for (int j = 0; j < count; ++j) {
            float score = 0;
            for (int d = 0; d < 32; ++d) score += q[d] * k[j][d];
            float next = fmaxf(top, score), keep = expf(top - next), weight = expf(score - next);
            sum = sum * keep + weight;
            for (int d = 0; d < 32; ++d) o[d] = o[d] * keep + weight * v[j][d];
            top = next;
        }
    }
    if (row >= M) return;
    for (int d = 0; d < 32; ++d) O[row * 32 + d] = o[d] / sum;
}
