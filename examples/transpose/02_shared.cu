// A tile through shared memory, whose columns are in one bank
//
// /// kernel
// entry = "transpose"
// problem = "transpose.py:transpose"
// block = [32, 8]
// grid = ["(N + 31) // 32", "(M + 31) // 32"]
// after = "01_naive.cu"
// sass = ["LDS >= 4", "BAR == 1"]
// claim = "Both sides are coalesced now; a column of the tile lies in one bank."
// predict = ["sectors_per_request <= 4.5", "conflicts > 0", "races == 0"]
// ///
__global__ void transpose(const float* x, float* y, int M, int N)
{
    __shared__ float tile[32][32];
    int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (row + i < M && column < N) tile[threadIdx.y + i][threadIdx.x] = x[(size_t)(row + i) * N + column];
    __syncthreads();
    column = blockIdx.y * 32 + threadIdx.x, row = blockIdx.x * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (row + i < N && column < M) y[(size_t)(row + i) * M + column] = tile[threadIdx.x][threadIdx.y + i];
}
