// A tile with rows of 33 words, whose columns are in all banks
//
// /// kernel
// entry = "transpose"
// problem = "transpose.py:transpose"
// block = [32, 8]
// grid = ["(N + 31) // 32", "(M + 31) // 32"]
// after = "02_shared.cu"
// sass = ["LDS >= 4", "BAR == 1"]
// claim = "A word more in each row, and no conflict is left."
// predict = ["sectors_per_request <= 4.5", "conflicts == 0", "races == 0"]
// ///
__global__ void transpose(const float* x, float* y, int M, int N)
{
    __shared__ float tile[32][33];
    int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (row + i < M && column < N) tile[threadIdx.y + i][threadIdx.x] = x[(size_t)(row + i) * N + column];
    __syncthreads();
    column = blockIdx.y * 32 + threadIdx.x, row = blockIdx.x * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (row + i < N && column < M) y[(size_t)(row + i) * M + column] = tile[threadIdx.x][threadIdx.y + i];
}
