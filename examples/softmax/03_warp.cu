// A warp a row: maximum and sum in one pass, exchanged by shuffles
//
// /// kernel
// entry = "softmax"
// problem = "softmax.py:softmax"
// block = [32, "ROWS"]
// grid = "(M + ROWS - 1) // ROWS"
// after = "02_block.cu"
// sass = ["SHFL >= 10", "no BAR", "no LDS"]
// claim = "No shared memory and no barrier; x is read twice, not three times."
// predict = ["global_bytes <= 0.8 of 02_block.cu", "barriers == 0", "shared_requests == 0"]
//
// [params]
// ROWS = [4, 8]
// ///
#include <math.h>

__global__ void softmax(const float* x, float* y, int M, int N)
{
    int row = blockIdx.x * ROWS + threadIdx.y;
    if (row >= M) return;
    x += (size_t)row * N;
    y += (size_t)row * N;
    float top = -INFINITY, sum = 0;  // the sum is of exp(x - top), for the largest x so far
    for (int i = threadIdx.x; i < N; i += 32) {
        float next = fmaxf(top, x[i]);
        sum = sum * expf(top - next) + expf(x[i] - next);
        top = next;
    }
    for (int lane = 16; lane > 0; lane /= 2) {
        float other = __shfl_xor_sync(0xffffffff, top, lane);
        float others = __shfl_xor_sync(0xffffffff, sum, lane);
        float next = fmaxf(top, other);
        if (next > -INFINITY) sum = sum * expf(top - next) + others * expf(other - next);
        top = next;
    }
    for (int i = threadIdx.x; i < N; i += 32) y[i] = expf(x[i] - top) / sum;
}
