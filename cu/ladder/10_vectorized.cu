// 128-bit loads, from global and from shared memory
//
// A thread's outputs now form quads of four neighbours, so it reads B from shared memory four floats at a time
// (LDS.128), and A too, because the tile of A is stored transposed. Global memory is read in quads as well
// (LDG.128). The bytes are the same, but they take a quarter of the instructions, and every instruction takes
// an issue slot that an FFMA could use.
//
// /// kernel
// entry = "matmul"
// after = "09_blocked_2d"
// block = ["BN // TN", "BM // TM"]
// tile  = ["BM", "BN"]
// where = [
//     "32 <= TM * TN",
//     "TM * TN <= 128",
//     "BM * BN // (TM * TN) <= 512",
//     "BM * BN <= 128 * 256",
//     "TM * TN + BK * (BM + BN) * TM * TN // (BM * BN) <= 192",  # registers for sums and for the next tile
//     "4 * BK * (BM + BN) <= 48 * 1024",
//     "BM * BK // 4 % (BM * BN // (TM * TN)) == 0",
//     "BK * BN // 4 % (BM * BN // (TM * TN)) == 0",
// ]
// loads = "BM + BN"
// sass  = ["LDG.128", "LDS.128 in loop >= 16", "FFMA share in loop >= 75%", "no LDL", "no STL"]
// claim = "Shared loads a product fall from 0.16 to 1/16 with 8 x 8 outputs; 92% of the loop is FFMA."
// predict = ["shared_requests <= 0.45 of 09_blocked_2d"]
//
// [params]
// BM = [128, 64, 256]
// BN = [128, 64, 256]
// BK = [16, 8, 32]
// TM = [8, 4, 16]
// TN = [8, 4, 16]
// ///

#include "vector.cuh"

#define ROWS (BM / TM)  // threads along a column of the tile: a thread's row quads lie 4 * ROWS apart
#define COLS (BN / TN)  // and along a row: its column quads lie 4 * COLS apart
#define THREADS (ROWS * COLS)
#define A_QUADS (BM * BK / 4 / THREADS)  // quads of the tiles that a thread fetches
#define B_QUADS (BK * BN / 4 / THREADS)

extern "C" __global__ void __launch_bounds__(THREADS)
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta)
{
    __shared__ __align__(16) float As[BK][BM];  // transposed: the rows of a thread lie side by side
    __shared__ __align__(16) float Bs[BK][BN];

    const int tx = threadIdx.x, ty = threadIdx.y, self = ty * COLS + tx;
    const unsigned row = blockIdx.y * BM;
    const unsigned col = blockIdx.x * BN;

    // The first quads of A and B that this thread loads; the others lie whole rows below.
    const int am = self / (BK / 4), ak = self % (BK / 4) * 4, a_step = THREADS / (BK / 4);
    const int bk = self / (BN / 4), bn = self % (BN / 4) * 4, b_step = THREADS / (BN / 4);
    const bool quads = row + BM <= M && col + BN <= N && aligned16(A, lda) && aligned16(B, ldb);
    A += (long long)(row + am) * lda + ak;
    B += (long long)bk * ldb + col + bn;

    float4 a4[A_QUADS], b4[B_QUADS];  // from global to shared memory
    const auto fetch = [&](int left) {
        const float *a = A, *b = B;
        if (quads && left >= BK) {
            for (int i = 0; i < A_QUADS; ++i, a += (long long)a_step * lda) a4[i] = *(const float4*)a;
            for (int i = 0; i < B_QUADS; ++i, b += (long long)b_step * ldb) b4[i] = *(const float4*)b;
        } else {  // ragged edge, or unaligned rows: what is outside becomes zero
            for (int i = 0; i < A_QUADS; ++i, a += (long long)a_step * lda)
                a4[i] = load4(a, row + am + i * a_step < M ? left - ak : 0);
            for (int i = 0; i < B_QUADS; ++i, b += (long long)b_step * ldb)
                b4[i] = load4(b, bk + i * b_step < left ? N - (int)(col + bn) : 0);
        }
        A += BK;
        B += (long long)BK * ldb;
    };
    const auto stash = [&] {
        for (int i = 0; i < A_QUADS; ++i) {
            float* s = &As[ak][am + i * a_step];
            s[0] = a4[i].x;
            s[BM] = a4[i].y;
            s[2 * BM] = a4[i].z;
            s[3 * BM] = a4[i].w;
        }
        for (int i = 0; i < B_QUADS; ++i) *(float4*)&Bs[bk + i * b_step][bn] = b4[i];
    };

    float sum[TM][TN] = {};
    for (int left = K; left > 0; left -= BK) {  // counts down: nothing to overflow near 2^31
        fetch(left);
        stash();
        __syncthreads();  // the tile is complete before anyone reads it

        #pragma unroll 8
        for (int k = 0; k < BK; ++k) {
            float a[TM], b[TN];
            for (int i = 0; i < TM; i += 4) *(float4*)&a[i] = *(const float4*)&As[k][4 * ty + i * ROWS];
            for (int j = 0; j < TN; j += 4) *(float4*)&b[j] = *(const float4*)&Bs[k][4 * tx + j * COLS];
            for (int i = 0; i < TM; ++i)
                for (int j = 0; j < TN; ++j) sum[i][j] += a[i] * b[j];
        }
        __syncthreads();  // everyone has read it before it is overwritten
    }

    #pragma unroll  // registers cannot be indexed: i and j must be constants
    for (int i = 0; i < TM; ++i) {
        const unsigned r = row + 4 * ty + i / 4 * 4 * ROWS + i % 4;
        if (r >= M) continue;
        #pragma unroll
        for (int j = 0; j < TN; j += 4) {
            const unsigned s = col + 4 * tx + j * COLS;
            store4(C + (long long)r * ldc + s, &sum[i][j], N - (int)s, aligned16(C, ldc), alpha, beta);
        }
    }
}
