// A thread a row: three passes over memory, uncoalesced
//
// /// kernel
// entry = "softmax"
// problem = "softmax.py:softmax"
// block = 128
// grid = "(M + 127) // 128"
// claim = "Each thread reads a row of its own: a request touches a sector for each of its threads."
// predict = ["sectors_per_request >= 25", "races == 0"]
// ///
#include <math.h>

__global__ void softmax(const float* x, float* y, int M, int N)
{
    int row = blockIdx.x * 128 + threadIdx.x;
    if (row >= M) return;
    x += (size_t)row * N;
    y += (size_t)row * N;
    float top = -INFINITY, sum = 0;
    for (int i = 0; i < N; ++i) top = fmaxf(top, x[i]);
    for (int i = 0; i < N; ++i) sum += expf(x[i] - top);
    for (int i = 0; i < N; ++i) y[i] = expf(x[i] - top) / sum;
}
