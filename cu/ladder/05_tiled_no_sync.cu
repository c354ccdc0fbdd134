// Square tiles without barriers, wrong on purpose
//
// Rung 03 without its two barriers. A warp no longer waits for the others, so it reads elements that still
// belong to the tile before, or already to the next one. The kernel is here to be caught: a fast result is
// worth nothing before it has been verified.
//
// /// kernel
// entry = "matmul"
// after = "03_tiled"
// block = ["TILE", "TILE"]
// tile  = ["TILE", "TILE"]
// loads = "2 * TILE"
// sass  = ["LDS.128 in loop", "no BAR"]
// claim = "As and Bs are written and read without a barrier in between: a race on each, and wrong results."
// predict = ["races >= 2"]
// broken = "both barriers are missing: warps race on As and Bs"
// [params]
// TILE = [16, 8, 32]
// ///

extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{
    __shared__ float As[TILE][TILE];
    __shared__ float Bs[TILE][TILE];

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
        Bs[ty][tx] = ty < left && col < N ? *b : 0.f;

        for (int k = 0; k < TILE; ++k)
            sum += As[ty][k] * Bs[k][tx];

        a += TILE;
        b += (long long)TILE * ldb;
    }

    if (row >= M || col >= N) return;
    // BLAS: with beta == 0, C is output only and may hold NaN; 0 * NaN would let it through.
    float* c = C + (long long)row * ldc + col;
    *c = beta == 0.f ? alpha * sum : alpha * sum + beta * *c;
}
