// Padding removes the bank conflict
//
// The same tile with one more column, which nobody reads. Rows are now 33 words apart, so the elements of a
// column lie in 32 different banks. The conflict is gone, at the cost of 128 bytes of shared memory.
//
// /// kernel
// entry = "matmul"
// after = "06_bank_conflict"
// block = ["TILE", "TILE"]
// tile  = ["TILE", "TILE"]
// loads = "2 * TILE"
// sass  = ["LDS in loop", "BAR in loop >= 2", "no LDL", "no STL"]
// claim = "One word of padding a row reduces the 32 wavefronts of each read of Bs to a single one."
// predict = ["conflicts == 0", "wavefronts <= 0.06 of 06_bank_conflict"]
//
// [params]
// TILE = [32, 16]
// ///

extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{
    __shared__ float As[TILE][TILE];
    // volatile keeps reads one word wide: four k at once (LDS.128) would hide the conflict.
    volatile __shared__ float Bs[TILE][TILE + 1];

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
