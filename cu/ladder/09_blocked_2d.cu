// Register blocking: TM x TN outputs per thread
//
// A thread with a column of outputs reuses each element of B, but reads an element of A for every product.
// With TM rows and TN columns a step of k takes TM + TN reads for TM * TN products: an outer product of two
// short vectors in registers. The tile of a block grows with it, and each element that is loaded from global
// memory serves a whole row or column of the tile.
//
// /// kernel
// entry = "matmul"
// after = "04_tiled_coarse"
// block = ["BN // TN", "BM // TM"]
// tile  = ["BM", "BN"]
// where = ["BM % TM == 0", "BN % TN == 0", "BM * BN // (TM * TN) % BN == 0"]
// loads = "BM + BN"
// sass  = ["FFMA share in loop >= 70%", "LDS.128 in loop", "no LDG.128", "no LDL", "no STL"]
// claim = "Shared loads a product fall from 0.31 to 1/(4 TN) + 1/TM: 0.16 with 8 x 8 outputs a thread."
// predict = ["shared_requests <= 0.55 of 04_tiled_coarse"]
//
// [params]
// BM = [128, 64]
// BN = [128, 64]
// BK = [16]
// TM = [8, 4]
// TN = [8]
// ///

#define ROWS (BM / TM)  // threads along a column of the tile: a thread's rows lie this far apart
#define COLS (BN / TN)  // and along a row: a thread's columns lie this far apart
#define THREADS (ROWS * COLS)

extern "C" __global__ void __launch_bounds__(THREADS)
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta)
{
    __shared__ float As[BM][BK];
    __shared__ float Bs[BK][BN];

    const unsigned tx = threadIdx.x, ty = threadIdx.y, self = ty * COLS + tx;
    const unsigned row = blockIdx.y * BM;
    const unsigned col = blockIdx.x * BN;
    A += (long long)row * lda;
    B += col;

    float sum[TM][TN] = {};
    for (int left = K; left > 0; left -= BK) {  // counts down: nothing to overflow near 2^31
        // A tile is no longer as wide as the block: threads fill it in the order of memory.
        // Outside the matrices it holds zeros, so the products below need no bounds.
        for (int i = 0; i < BM * BK / THREADS; ++i) {
            const unsigned m = (self + i * THREADS) / BK, k = self % BK;
            As[m][k] = row + m < M && (int)k < left ? A[(long long)m * lda + k] : 0.f;
        }
        for (int i = 0; i < BK * BN / THREADS; ++i) {
            const unsigned k = (self + i * THREADS) / BN, n = self % BN;
            Bs[k][n] = (int)k < left && col + n < N ? B[(long long)k * ldb + n] : 0.f;
        }
        __syncthreads();  // the tile is complete before anyone reads it

        #pragma unroll 4  // four k at once: one 128-bit read (LDS.128) for each row of As
        for (int k = 0; k < BK; ++k) {
            float b[TN];
            for (int j = 0; j < TN; ++j) b[j] = Bs[k][tx + j * COLS];
            for (int i = 0; i < TM; ++i)
                for (int j = 0; j < TN; ++j) sum[i][j] += As[ty + i * ROWS][k] * b[j];
        }
        __syncthreads();  // everyone has read it before it is overwritten

        A += BK;
        B += (long long)BK * ldb;
    }

    #pragma unroll  // registers cannot be indexed: i and j must be constants
    for (int i = 0; i < TM; ++i) {
        const unsigned r = row + ty + i * ROWS;
        float* c = C + (long long)r * ldc + col + tx;
        #pragma unroll
        for (int j = 0; j < TN; ++j, c += COLS) {
            if (r >= M || col + tx + j * COLS >= N) break;
            // BLAS: with beta == 0, C is output only and may hold NaN; 0 * NaN would let it through.
            *c = beta == 0.f ? alpha * sum[i][j] : alpha * sum[i][j] + beta * *c;
        }
    }
}
