// A product by the wmma API, a tile for each warp of a block of two dimensions, written for this test.
#include <mma.h>
using namespace nvcuda;
__global__ void wmma_gemm(const half* a, const half* b, float* c, int M, int N, int K)
{
    int warpM = (blockIdx.x * blockDim.x + threadIdx.x) / warpSize, warpN = blockIdx.y * blockDim.y + threadIdx.y;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
    wmma::fill_fragment(acc, 0.0f);
    for (int i = 0; i < K; i += 16) {
        int row = warpM * 16, col = warpN * 16;
        if (row < M && col < N) {
            wmma::load_matrix_sync(fa, a + row * K + i, K);
            wmma::load_matrix_sync(fb, b + i * N + col, N);
            wmma::mma_sync(acc, fa, fb, acc);
        }
    }
    int row = warpM * 16, col = warpN * 16;
    if (row < M && col < N) wmma::store_matrix_sync(c + row * N + col, acc, N, wmma::mem_row_major);
}
