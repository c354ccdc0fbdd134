// A thread a row
//
// /// kernel
// entry = "layernorm"
// problem = "layernorm.py:layernorm"
// block = 64
// grid = "(M + 63) // 64"
// claim = "Each thread reads a row of its own: uncoalesced."
// predict = ["sectors_per_request >= 8", "races == 0"]
// ///
__global__ void layernorm(const float* x, const float* weight, const float* bias, float* y, float* mean,
                          float* rstd, int M, int N, float eps)
{
    int row = blockIdx.x * 64 + threadIdx.x;
    if (row >= M) return;
    x += (size_t)row * N;
    y += (size_t)row * N;
    float sum = 0, squares = 0;
    for (int i = 0; i < N; ++i) sum += x[i];
    float m = sum / N;
    for (int i = 0; i < N; ++i) squares += (x[i] - m) * (x[i] - m);
    float r = 1 / sqrtf(squares / N + eps);
    for (int i = 0; i < N; ++i) y[i] = (x[i] - m) * r * weight[i] + bias[i];
    mean[row] = m;
    rstd[row] = r;
}
