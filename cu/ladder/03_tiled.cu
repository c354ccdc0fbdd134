// Square tiles of A and B in shared memory
//
// The threads of a block need the same rows of A and the same columns of B. So each thread loads one element
// of each into shared memory, all wait at a barrier, and then all read the whole tile: an element that is
// loaded from global memory once serves TILE threads.
//
// /// kernel
// entry = "matmul"
// after = "02_coalesced"
// block = ["TILE", "TILE"]
// tile  = ["TILE", "TILE"]
// loads = "2 * TILE"
// sass  = ["LDS.128 in loop", "BAR in loop >= 2", "no LDL", "no STL"]
// claim = "Global loads a product fall from 2 to 2 / TILE; 5 shared loads serve 4 products."
// predict = ["global_bytes <= 0.07 of 02_coalesced", "conflicts == 0"]
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
        __syncthreads();  // the tile is complete before anyone reads it

        for (int k = 0; k < TILE; ++k)
            sum += As[ty][k] * Bs[k][tx];
        __syncthreads();  // everyone has read it before it is overwritten

        a += TILE;
        b += (long long)TILE * ldb;
    }

    if (row >= M || col >= N) return;
    // BLAS: with beta == 0, C is output only and may hold NaN; 0 * NaN would let it through.
    float* c = C + (long long)row * ldc + col;
    *c = beta == 0.f ? alpha * sum : alpha * sum + beta * *c;
}
