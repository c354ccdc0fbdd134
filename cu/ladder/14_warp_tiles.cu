// Warp tiles: 16 x 8 outputs per thread, and fragments read ahead
//
// The more outputs a thread has, the less it reads from shared memory for each, but outputs take registers.
// Here each warp computes a compact WM x WN tile, and each of its 4 x 8 lanes 16 x 8 outputs: 24 floats read
// for 128 products, and registers for one block an SM. So few warps cannot hide the latency of reads from each
// other, so each thread hides its own: it reads the fragments of k + 1 before the products of k, also across
// the end of a tile.
//
// /// kernel
// entry = "matmul"
// after = "13_cp_async"
// min_arch = "sm_80"
// block = "32 * (BM // WM) * (BN // WN)"
// tile  = ["BM", "BN"]
// where = ["WM * BN >= 64 * 128"]
// shared = "4 * STAGES * BK * (BM + 4 + BN)"
// loads = "BM + BN"
// sums  = "fma"
// sass  = ["LDGSTS in loop", "LDS.128 in loop >= 32", "FFMA share in loop >= 85%", "no LDL", "no STL"]
// claim = "Floats read from shared memory per product fall from 1/4 to 3/16, those from global memory by a quarter."
// predict = ["sectors <= 0.82 of 13_cp_async", "shared_requests <= 0.9 of 13_cp_async"]
//
// [params]
// BM = [128]
// BN = [256, 128]
// BK = [16]
// WM = [64, 32]
// WN = [64]
// STAGES = [4]
// ///

#include "cp_async.cuh"
#include "epilogue.cuh"
#include "vector.cuh"

#define TM (WM / 4)  // a thread's outputs: the lanes of a warp form a 4 x 8 grid, its quads lie 16 rows apart
#define TN (WN / 8)  // and 32 columns
#define THREADS (32 * (BM / WM) * (BN / WN))
#define PAD 4  // floats: as few as keep 16-byte alignment
#define A_ROWS (BM / (THREADS / 8))  // rows of A of which a thread copies every eighth float
#define B_QUADS (BK * BN / 4 / THREADS)

extern "C" __global__ void __launch_bounds__(THREADS)
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER)
{
    extern __shared__ __align__(16) float memory[];  // dynamic: it may exceed 48 KB
    auto As = (float(*)[BK][BM + PAD])memory;
    auto Bs = (float(*)[BK][BN])(As + STAGES);

    const int self = threadIdx.x, warp = self / 32, lane = self % 32;
    const int tile_m = warp / (BN / WN) * WM + lane / 2 % 4 * 4;  // this thread's first row quad
    const int tile_n = warp % (BN / WN) * WN + (lane / 8 * 2 + lane % 2) * 4;  // and column quad
    const unsigned row = blockIdx.y * BM;
    const unsigned col = blockIdx.x * BN;

    // The first float of A that this thread copies: eight lanes lie side by side along k. Its other floats lie whole
    // rows below and 8 columns to the right. Past the last row it copies the last one again: nobody stores those.
    const int am = self / 8, ak = self % 8, a_step = THREADS / 8;
    const float* a_row[A_ROWS];
    for (int i = 0; i < A_ROWS; ++i)
        a_row[i] = A + (long long)min(row + am + i * a_step, M - 1u) * lda + ak;

    // The first quad of B that it copies; the others lie whole rows below.
    const int bk = self / (BN / 4), bn = self % (BN / 4) * 4, b_step = THREADS / (BN / 4);
    const int b_count = N - (int)(col + bn);
    const bool quads = aligned16(B, ldb) && N % 4 == 0;  // then each quad exists as a whole or not at all
    B += (long long)bk * ldb + col + bn;

    const auto fetch = [&](int stage, int left) {  // `left` columns of A and rows of B, or more than BK
        for (int k = 0; k < BK; k += 8)
            for (int i = 0; i < A_ROWS; ++i)
                cp_async4(&As[stage][ak + k][am + i * a_step], a_row[i] + k, ak + k < left);
        for (int i = 0; i < A_ROWS; ++i) a_row[i] += BK;

        const float* b = B;
        if (quads)
            for (int i = 0; i < B_QUADS; ++i, b += (long long)b_step * ldb)
                cp_async16(&Bs[stage][bk + i * b_step][bn], b, bk + i * b_step < left && b_count > 0);
        else
            for (int i = 0; i < B_QUADS; ++i, b += (long long)b_step * ldb)
                for (int e = 0; e < 4; ++e)
                    cp_async4(&Bs[stage][bk + i * b_step][bn + e], b + e,
                               bk + i * b_step < left && e < b_count);
        B += (long long)BK * ldb;
    };

    int ahead = K;  // k that are not fetched yet
    for (int stage = 0; stage < STAGES - 1; ++stage, ahead -= BK) {
        if (ahead > 0) fetch(stage, ahead);
        cp_async_commit_group();
    }

    float sum[TM][TN] = {};
    float a[2][TM], b[2][TN];  // fragments of one k, and of the next
    const auto read = [&](int which, int stage, int k) {
        const float *as = &As[stage][k][tile_m], *bs = &Bs[stage][k][tile_n];
        for (int i = 0; i < TM; i += 4) *(float4*)&a[which][i] = *(const float4*)&as[i * 4];
        for (int j = 0; j < TN; j += 4) *(float4*)&b[which][j] = *(const float4*)&bs[j * 8];
    };

    cp_async_wait_group<STAGES - 2>();
    __syncthreads();  // all copies of the first tile have landed
    read(0, 0, 0);
    int now = 0, next = STAGES - 1;
    for (int left = K; left > 0; left -= BK, ahead -= BK) {
        if (ahead > 0) fetch(next, ahead);
        cp_async_commit_group();
        next = now;

        #pragma unroll  // the index of the fragment must be a constant: registers cannot be indexed
        for (int k = 0; k < BK; ++k) {
            if (k == BK - 1) {
                if (left > BK) now = now + 1 == STAGES ? 0 : now + 1;  // else what is read now is not used
                cp_async_wait_group<STAGES - 2>();
                __syncthreads();  // the next tile has landed, and this one has been read
            }
            read((k + 1) % 2, now, (k + 1) % BK);
            for (int j = 0; j < TN; ++j)
                for (int i = 0; i < TM; ++i) {
                    const int m = j % 2 ? TM - 1 - i : i;  // back and forth: a[m] is reused
                    sum[m][j] += a[k % 2][m] * b[k % 2][j];
                }
        }
    }

    const Epilogue epilogue = MAKE_EPILOGUE(M, N, ldc);
    #pragma unroll  // registers cannot be indexed: i and j must be constants
    for (int i = 0; i < TM; ++i) {
        const unsigned r = row + tile_m + i / 4 * 16 + i % 4;
        if (r >= M) continue;
        #pragma unroll
        for (int j = 0; j < TN; j += 4) {
            const unsigned s = col + tile_n + j * 8;
            store4(C + (long long)r * ldc + s, &sum[i][j], N - (int)s, aligned16(C, ldc), alpha, beta, epilogue,
                   r, s);
        }
    }
}
