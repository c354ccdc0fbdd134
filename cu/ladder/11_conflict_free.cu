// A layout of threads without bank conflicts
//
// Shared memory serves a 128-bit access for a quarter of a warp at a time, or for a half if neighbouring lanes
// read the same quad. So the lanes of a warp form a grid of 4 x 8 threads in which neighbours share a row
// quad. The transposed writes of A have conflicts, too: so rows of that tile get four words of padding, and
// only two lanes lie side by side along k, whose words are then 16 banks apart.
//
// /// kernel
// entry = "matmul"
// after = "10_vectorized"
// block = "BM * BN // (TM * TN)"
// tile  = ["BM", "BN"]
// where = ["BM * BN // (TM * TN) <= 2 * BM"]
// loads = "BM + BN"
// sums  = "fma"
// sass  = ["LDG.128", "LDS.128 in loop >= 16", "FFMA share in loop >= 90%", "no LDL", "no STL"]
// claim = "No bank conflict is left: 4 wavefronts instead of 4 x 4 for four writes of A, and 2 for any read."
// predict = ["conflicts == 0", "wavefronts <= 0.75 of 10_vectorized"]
//
// [params]
// BM = [128, 64]
// BN = [128, 64]
// BK = [16, 32]
// TM = [8]
// TN = [8]
// ///

#include "epilogue.cuh"
#include "vector.cuh"

#define ROWS (BM / TM)  // threads along a column of the tile: a thread's row quads lie 4 * ROWS apart
#define COLS (BN / TN)  // and along a row: its column quads lie 4 * COLS apart
#define THREADS (ROWS * COLS)
#define PAD 4  // floats: as few as keep 16-byte alignment
#define A_QUADS (BM * BK / 4 / THREADS)  // quads of the tiles that a thread fetches
#define B_QUADS (BK * BN / 4 / THREADS)
#define A_DOWN(i) (i * (THREADS / 2) % BM)  // how many rows the i-th quad of A lies below the first one,
#define A_RIGHT(i) (i * (THREADS / 2) / BM * 8)  // and how many columns to its right

extern "C" __global__ void __launch_bounds__(THREADS)
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER)
{
    __shared__ __align__(16) float As[BK][BM + PAD];  // transposed: a thread's rows lie side by side
    __shared__ __align__(16) float Bs[BK][BN];

    const int self = threadIdx.x, warp = self / 32, lane = self % 32;
    const int tx = warp % (COLS / 8) * 8 + lane / 8 * 2 + lane % 2;
    const int ty = warp / (COLS / 8) * 4 + lane / 2 % 4;
    const unsigned row = blockIdx.y * BM;
    const unsigned col = blockIdx.x * BN;

    // The first quads of A and B that this thread loads; the others lie whole rows below. Of A, two lanes share 32
    // bytes of a row, which is one sector; after the last row of the tile, the next 8 columns follow.
    const int am = self / 2, ak = self % 2 * 4;
    const int bk = self / (BN / 4), bn = self % (BN / 4) * 4, b_step = THREADS / (BN / 4);
    const bool quads = row + BM <= M && col + BN <= N && aligned16(A, lda) && aligned16(B, ldb);
    A += (long long)(row + am) * lda + ak;
    B += (long long)bk * ldb + col + bn;

    float4 a4[A_QUADS], b4[B_QUADS];  // from global to shared memory
    const auto fetch = [&](int left) {
        const float *a = A, *b = B;
        if (quads && left >= BK) {
            for (int i = 0; i < A_QUADS; ++i)
                a4[i] = *(const float4*)&a[(long long)A_DOWN(i) * lda + A_RIGHT(i)];
            for (int i = 0; i < B_QUADS; ++i, b += (long long)b_step * ldb) b4[i] = *(const float4*)b;
        } else {  // ragged edge, or unaligned rows: what is outside becomes zero
            for (int i = 0; i < A_QUADS; ++i)
                a4[i] = load4(&a[(long long)A_DOWN(i) * lda + A_RIGHT(i)],
                                  row + am + A_DOWN(i) < M ? left - ak - A_RIGHT(i) : 0);
            for (int i = 0; i < B_QUADS; ++i, b += (long long)b_step * ldb)
                b4[i] = load4(b, bk + i * b_step < left ? N - (int)(col + bn) : 0);
        }
        A += BK;
        B += (long long)BK * ldb;
    };
    const auto stash = [&] {
        for (int i = 0; i < A_QUADS; ++i) {
            float* s = &As[ak + A_RIGHT(i)][am + A_DOWN(i)];
            s[0] = a4[i].x;
            s[BM + PAD] = a4[i].y;
            s[2 * (BM + PAD)] = a4[i].z;
            s[3 * (BM + PAD)] = a4[i].w;
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

    const Epilogue epilogue = MAKE_EPILOGUE(M, N, ldc);
    #pragma unroll  // registers cannot be indexed: i and j must be constants
    for (int i = 0; i < TM; ++i) {
        const unsigned r = row + 4 * ty + i / 4 * 4 * ROWS + i % 4;
        if (r >= M) continue;
        #pragma unroll
        for (int j = 0; j < TN; j += 4) {
            const unsigned s = col + 4 * tx + j * COLS;
            store4(C + (long long)r * ldc + s, &sum[i][j], N - (int)s, aligned16(C, ldc), alpha, beta, epilogue,
                   r, s);
        }
    }
}
