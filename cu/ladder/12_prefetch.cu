// Double buffering: load the next tile while this one is computed
//
// So far all warps of a block wait for global memory at the same time, tile after tile, and only another block
// can use that time. Here a thread loads its part of the next tile into registers before the products of this
// tile, and stores it to a second buffer after them. The loads have all that time to arrive, and one barrier a
// tile is enough.
//
// /// kernel
// entry = "matmul"
// after = "11_conflict_free"
// block = "BM * BN // (TM * TN)"
// tile  = ["BM", "BN"]
// where = ["BM * BN // (TM * TN) <= 2 * BM"]
// loads = "BM + BN"
// sums  = "fma"
// sass  = ["LDG.128", "LDS.128 in loop >= 16", "FFMA share in loop >= 90%", "no LDL", "no STL"]
// claim = "A load has the time of BK * TM * TN products a thread to arrive, and a tile needs 1 barrier, not 2."
// predict = ["barriers <= 0.55 of 11_conflict_free", "conflicts == 0"]
//
// [params]
// BM = [128, 64]
// BN = [64, 128]
// BK = [16]
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
    __shared__ __align__(16) float As[2][BK][BM + PAD];  // transposed: a thread's rows lie side by side
    __shared__ __align__(16) float Bs[2][BK][BN];

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
    const auto stash = [&](int next) {
        for (int i = 0; i < A_QUADS; ++i) {
            float* s = &As[next][ak + A_RIGHT(i)][am + A_DOWN(i)];
            s[0] = a4[i].x;
            s[BM + PAD] = a4[i].y;
            s[2 * (BM + PAD)] = a4[i].z;
            s[3 * (BM + PAD)] = a4[i].w;
        }
        for (int i = 0; i < B_QUADS; ++i) *(float4*)&Bs[next][bk + i * b_step][bn] = b4[i];
    };

    float sum[TM][TN] = {};
    fetch(K);
    stash(0);
    __syncthreads();  // the first tile is complete
    for (int left = K, now = 0; left > 0; left -= BK, now ^= 1) {
        if (left > BK) fetch(left - BK);

        #pragma unroll 8
        for (int k = 0; k < BK; ++k) {
            float a[TM], b[TN];
            for (int i = 0; i < TM; i += 4) *(float4*)&a[i] = *(const float4*)&As[now][k][4 * ty + i * ROWS];
            for (int j = 0; j < TN; j += 4) *(float4*)&b[j] = *(const float4*)&Bs[now][k][4 * tx + j * COLS];
            for (int i = 0; i < TM; ++i)
                for (int j = 0; j < TN; ++j) sum[i][j] += a[i] * b[j];
        }
        if (left > BK) stash(now ^ 1);  // nobody reads that buffer: all were done with it before the last barrier
        __syncthreads();  // the next tile is complete, and this one has been read
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
