// A thread an element: five reads of global memory
//
// /// kernel
// entry = "stencil"
// problem = "stencil.py:stencil"
// block = [32, 8]
// grid = ["(N + 31) // 32", "(M + 7) // 8"]
// sass = ["LDG >= 5"]
// claim = "Each element is read five times."
// predict = ["shared_requests == 0", "races == 0"]
// ///
__constant__ float weights[5];

__global__ void stencil(const float* src, float* dst, int M, int N)
{
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
    if (x >= N || y >= M) return;
    const float* at = src + (size_t)y * N + x;
    float value = *at;
    if (x > 0 && x < N - 1 && y > 0 && y < M - 1)
        value = weights[0] * value + weights[1] * at[-N] + weights[2] * at[N] + weights[3] * at[-1]
              + weights[4] * at[1];
    dst[(size_t)y * N + x] = value;
}
