// A bank conflict: each warp reads a column of the transposed tile of B
//
// Shared memory has 32 banks, each one word wide: it serves a warp in one pass if the lanes access different
// banks. If the tile of B is stored transposed with rows of 32 words, each of its columns lies in one bank. A
// column is just what the lanes of a warp read at each k, and what they write when they fill the tile.
//
// /// kernel
// entry = "matmul"
// after = "03_tiled"
// block = ["TILE", "TILE"]
// tile  = ["TILE", "TILE"]
// loads = "2 * TILE"
// sass  = ["LDS in loop", "BAR in loop >= 2", "no LDL", "no STL"]
// claim = "At TILE = 32 each read of Bs is a 32-way bank conflict: 32 wavefronts instead of 1."
// predict = ["ways >= 20"]
//
// [params]
// TILE = [32, 16]
// ///

extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{
    __shared__ float As[TILE][TILE];
    // volatile keeps reads one word wide: four k at once (LDS.128) would hide the conflict.
    volatile __shared__ float Bs[TILE][TILE];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const unsigned row = blockIdx.y * TILE + ty;
    const unsigned col = blockIdx.x * TILE + tx;

    // No early return at the ragged edge: every thread has to reach the barriers.
    const float* a = A + (long long)row * lda + tx;
    const float* b = B + (long long)ty * ldb + col;

    float sum = 0.f;
    for (int left = K; left > 0; left -= TILE) {  // counts down: nothing to overflow near 2^31
        // Outside the matrices a tile holds zeros, so the product below needs no bounds.
        As[ty][tx] = row < M && tx < left ? *a : 0.f;
        Bs[tx][ty] = ty < left && col < N ? *b : 0.f;
        __syncthreads();  // the tile is complete before anyone reads it

        for (int k = 0; k < TILE; ++k)
            sum += As[ty][k] * Bs[tx][k];
        __syncthreads();  // everyone has read it before it is overwritten

        a += TILE;
        b += (long long)TILE * ldb;
    }

    if (row >= M || col >= N) return;
    // BLAS: with beta == 0, C is output only and may hold NaN; 0 * NaN would let it through.
    float* c = C + (long long)row * ldc + col;
    *c = beta == 0.f ? alpha * sum : alpha * sum + beta * *c;
}
