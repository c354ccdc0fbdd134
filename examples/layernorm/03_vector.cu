// A warp a row, four elements at a time
//
// /// kernel
// entry = "layernorm"
// problem = "layernorm.py:layernorm"
// block = [32, "ROWS"]
// grid = "(M + ROWS - 1) // ROWS"
// requires = ["N % 4 == 0"]
// after = "02_warp.cu"
// sass = ["LDG.128 >= 3", "STG.128", "SHFL >= 10"]
// claim = "A quarter of the requests."
// predict = ["global_requests <= 0.4 of 02_warp.cu", "races == 0"]
//
// [params]
// ROWS = [4, 8]
// ///
__device__ float warp_sum(float value)
{
    for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffff, value, lane);
    return value;
}

__device__ float normal(float x, float m, float r, float weight, float bias)
{
    return (x - m) * r * weight + bias;
}

__global__ void layernorm(const float* x, const float* weight, const float* bias, float* y, float* mean,
                          float* rstd, int M, int N, float eps)
{
    int row = blockIdx.x * ROWS + threadIdx.y;
    if (row >= M) return;
    const float4* from = (const float4*)(x + (size_t)row * N);
    float4* to = (float4*)(y + (size_t)row * N);
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < N / 4; i += 32) {
        float4 v = from[i];
        sum += v.x + v.y + v.z + v.w;
    }
    float m = warp_sum(sum) / N;
    for (int i = threadIdx.x; i < N / 4; i += 32) {
        float4 v = from[i];
        squares += (v.x - m) * (v.x - m) + (v.y - m) * (v.y - m) + (v.z - m) * (v.z - m) + (v.w - m) * (v.w - m);
    }
    float r = 1 / sqrtf(warp_sum(squares) / N + eps);
    for (int i = threadIdx.x; i < N / 4; i += 32) {
        float4 v = from[i], w = ((const float4*)weight)[i], b = ((const float4*)bias)[i];
        to[i] = make_float4(normal(v.x, m, r, w.x, b.x), normal(v.y, m, r, w.y, b.y), normal(v.z, m, r, w.z, b.z),
                            normal(v.w, m, r, w.w, b.w));
    }
    if (threadIdx.x == 0) mean[row] = m, rstd[row] = r;
}
