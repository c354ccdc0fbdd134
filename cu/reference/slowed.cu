// Rung 03 with a known share of extra work, for the self-test: it has to be found slower
//
// SLOW thousandths of all tiles are computed twice: the last tile is loaded again, from the same addresses,
// and adds nothing. Where that is no whole number of tiles a block, some blocks compute one more than others;
// these are spread evenly over the grid, so that the mean is exact.
//
// /// kernel
// entry = "matmul"
// block = ["TILE", "TILE"]
// tile  = ["TILE", "TILE"]
// sass  = ["LDS.128 in loop", "BAR in loop >= 2", "no LDL", "no STL"]
// claim = "SLOW=10 computes 1% more tiles than SLOW=0, with the same instructions."
//
// [params]
// SLOW = [0, 10, 30]
// TILE = [16]
// ///

// A variable in constant memory: a literal would be compiled to different instructions for each value.
__constant__ int slow = SLOW;

extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{
    __shared__ float As[TILE][TILE];
    __shared__ float Bs[TILE][TILE];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const unsigned row = blockIdx.y * TILE + ty;
    const unsigned col = blockIdx.x * TILE + tx;

    const int tiles = (K + TILE - 1) / TILE;
    // A sequence with steps of the golden ratio: any run of consecutive blocks covers [0, 1000) evenly.
    const unsigned b = (blockIdx.y * gridDim.x + blockIdx.x) * 2654435769u;
    const int extra = (int)(((long long)tiles * slow + (long long)(b >> 16) * 1000 / 65536) / 1000);

    const float* a = A + (long long)row * lda;
    const float* bp = B + col;

    float sum = 0.f;
    for (int t = 0; t < tiles + extra; ++t) {
        const int k = min(t, tiles - 1) * TILE;
        const bool counts = t < tiles;  // an extra tile is loaded like any other, and then not added
        const float av = row < M && k + tx < K ? a[k + tx] : 0.f;
        const float bv = k + ty < K && col < N ? bp[(long long)(k + ty) * ldb] : 0.f;
        As[ty][tx] = counts ? av : 0.f;
        Bs[ty][tx] = bv;
        __syncthreads();

        for (int i = 0; i < TILE; ++i)
            sum += As[ty][i] * Bs[i][tx];
        __syncthreads();
    }

    if (row >= M || col >= N) return;
    float* c = C + (long long)row * ldc + col;
    *c = beta == 0.f ? alpha * sum : alpha * sum + beta * *c;
}
