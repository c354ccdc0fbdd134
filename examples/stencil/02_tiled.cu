// A tile and the cells around it through shared memory
//
// /// kernel
// entry = "stencil"
// problem = "stencil.py:stencil"
// block = [32, "ROWS"]
// grid = ["(N + 31) // 32", "(M + ROWS - 1) // ROWS"]
// after = "01_naive.cu"
// sass = ["BAR == 1", "LDS >= 5"]
// claim = "Each element is read once, but for the edges of tiles."
// predict = ["global_bytes <= 0.7 of 01_naive.cu", "conflicts == 0", "races == 0"]
//
// [params]
// ROWS = [8, 16]
// ///
__constant__ float weights[5];

__global__ void stencil(const float* src, float* dst, int M, int N)
{
    __shared__ float tile[ROWS + 2][34];
    int left = blockIdx.x * 32 - 1, top = blockIdx.y * ROWS - 1;
    for (int i = threadIdx.y; i < ROWS + 2; i += ROWS)
        for (int j = threadIdx.x; j < 34; j += 32) {
            int x = left + j, y = top + i;
            tile[i][j] = x >= 0 && x < N && y >= 0 && y < M ? src[(size_t)y * N + x] : 0;
        }
    __syncthreads();
    int j = threadIdx.x + 1, i = threadIdx.y + 1, x = left + j, y = top + i;
    if (x >= N || y >= M) return;
    float value = tile[i][j];
    if (x > 0 && x < N - 1 && y > 0 && y < M - 1)
        value = weights[0] * value + weights[1] * tile[i - 1][j] + weights[2] * tile[i + 1][j]
              + weights[3] * tile[i][j - 1] + weights[4] * tile[i][j + 1];
    dst[(size_t)y * N + x] = value;
}
