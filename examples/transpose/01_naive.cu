// Read along rows, written along columns
//
// /// kernel
// entry = "transpose"
// problem = "transpose.py:transpose"
// block = [32, 8]
// grid = ["(N + 31) // 32", "(M + 7) // 8"]
// claim = "A warp writes 32 elements that are M apart: a sector each."
// predict = ["sectors_per_request >= 18", "races == 0"]
// ///
__global__ void transpose(const float* x, float* y, int M, int N)
{
    int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 8 + threadIdx.y;
    if (row < M && column < N) y[(size_t)column * M + row] = x[(size_t)row * N + column];
}
