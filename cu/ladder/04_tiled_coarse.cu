// Thread coarsening: a column of outputs per thread
//
// With one output a thread, each product costs a read of both tiles, and shared memory becomes the limit. Here
// a thread computes COARSE elements of one column of C: it reads an element of B once and multiplies it with
// COARSE rows of A. The tile also grows without more threads.
//
// /// kernel
// entry = "matmul"
// after = "03_tiled"
// block = ["TILE", "TILE // COARSE"]
// tile  = ["TILE", "TILE"]
// where = ["TILE % COARSE == 0", "32 <= TILE * TILE // COARSE", "TILE * TILE // COARSE <= 1024"]
// loads = "2 * TILE"
// sass  = ["LDS.128 in loop", "no LDL", "no STL"]
// claim = "Shared loads a product fall from 1.25 to 1/4 + 1/COARSE: 0.31 at COARSE = 16."
// predict = ["shared_requests <= 0.3 of 03_tiled"]
//
// [params]
// TILE   = [64, 32, 16]
// COARSE = [16, 8, 4, 2, 32]
// ///

#define ROWS (TILE / COARSE)  // rows of threads: a thread's outputs lie this far apart

// The bound holds a block of 1024 threads to 64 registers each; with more it could not start.
extern "C" __global__ void __launch_bounds__(TILE * ROWS)
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
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

    float sum[COARSE] = {};
    for (int left = K; left > 0; left -= TILE) {  // counts down: nothing to overflow near 2^31
        // Outside the matrices a tile holds zeros, so the product below needs no bounds.
        for (int i = 0; i < TILE; i += ROWS) {
            As[ty + i][tx] = row + i < M && tx < left ? a[(long long)i * lda] : 0.f;
            Bs[ty + i][tx] = ty + i < left && col < N ? b[(long long)i * ldb] : 0.f;
        }
        __syncthreads();  // the tile is complete before anyone reads it

        #pragma unroll 4  // four k at once: one 128-bit read (LDS.128) for each row of As
        for (int k = 0; k < TILE; ++k)
            for (int i = 0; i < COARSE; ++i)
                sum[i] += As[ty + i * ROWS][k] * Bs[k][tx];
        __syncthreads();  // everyone has read it before it is overwritten

        a += TILE;
        b += (long long)TILE * ldb;
    }

    for (int i = 0; i < COARSE; ++i) {
        if (row + i * ROWS >= M || col >= N) return;
        // BLAS: with beta == 0, C is output only and may hold NaN; 0 * NaN would let it through.
        float* c = C + (long long)(row + i * ROWS) * ldc + col;
        *c = beta == 0.f ? alpha * sum[i] : alpha * sum[i] + beta * *c;
    }
}
