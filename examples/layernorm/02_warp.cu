// A warp a row, by shuffles
//
// /// kernel
// entry = "layernorm"
// problem = "layernorm.py:layernorm"
// block = [32, "ROWS"]
// grid = "(M + ROWS - 1) // ROWS"
// after = "01_naive.cu"
// sass = ["SHFL >= 10", "no BAR"]
// claim = "Coalesced, and as many threads a row as a warp has."
// predict = ["sectors_per_request <= 4", "barriers == 0", "races == 0"]
//
// [params]
// ROWS = [4, 8]
// ///
__device__ float warp_sum(float value)
{
    for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffff, value, lane);
    return value;
}

__global__ void layernorm(const float* x, const float* weight, const float* bias, float* y, float* mean,
                          float* rstd, int M, int N, float eps)
{
    int row = blockIdx.x * ROWS + threadIdx.y;
    if (row >= M) return;
    x += (size_t)row * N;
    y += (size_t)row * N;
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < N; i += 32) sum += x[i];
    float m = warp_sum(sum) / N;
    for (int i = threadIdx.x; i < N; i += 32) squares += (x[i] - m) * (x[i] - m);
    float r = 1 / sqrtf(warp_sum(squares) / N + eps);
    for (int i = threadIdx.x; i < N; i += 32) y[i] = (x[i] - m) * r * weight[i] + bias[i];
    if (threadIdx.x == 0) mean[row] = m, rstd[row] = r;
}
