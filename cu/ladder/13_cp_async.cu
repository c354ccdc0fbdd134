// cp.async: several tiles in flight, and none in registers
//
// A prefetch through registers costs these registers, and instructions that store them to shared memory. From
// sm_80 on an asynchronous copy from global to shared memory needs neither: a thread issues it and waits for
// it later. So STAGES - 1 tiles can be in flight at once, and what is outside the matrix arrives as zeros
// without a branch. A is transposed by copying single floats, B is copied in quads.
//
// /// kernel
// entry = "matmul"
// after = "12_prefetch"
// min_arch = "sm_80"
// block = "BM * BN // (TM * TN)"
// tile  = ["BM", "BN"]
// shared = "4 * STAGES * BK * (BM + 4 + BN)"
// loads = "BM + BN"
// sums  = "fma"
// sass  = ["LDGSTS", "no STS", "LDS.128 in loop >= 16", "FFMA share in loop >= 90%", "no LDL", "no STL"]
// claim = "STAGES - 1 tiles in flight, not 1; 10 copies per thread and tile replace 4 loads and 10 stores."
// predict = ["shared_requests <= 0.9 of 11_conflict_free", "seconds < 1 of 11_conflict_free at N=4096"]
//
// [params]
// BM = [128, 64]
// BN = [128, 64]
// BK = [16, 32]
// TM = [8]
// TN = [8]
// STAGES = [3, 4, 2]
// ///

#include "cp_async.cuh"
#include "epilogue.cuh"
#include "vector.cuh"

#define ROWS (BM / TM)  // threads along a column of the tile: a thread's row quads lie 4 * ROWS apart
#define COLS (BN / TN)  // and along a row: its column quads lie 4 * COLS apart
#define THREADS (ROWS * COLS)
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
    const int tx = warp % (COLS / 8) * 8 + lane / 8 * 2 + lane % 2;
    const int ty = warp / (COLS / 8) * 4 + lane / 2 % 4;
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
    int now = 0, next = STAGES - 1;
    for (int left = K; left > 0; left -= BK, ahead -= BK) {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();  // all copies of this tile have landed, and the last tile has been read
        if (ahead > 0) fetch(next, ahead);
        cp_async_commit_group();

        #pragma unroll 8
        for (int k = 0; k < BK; ++k) {
            float a[TM], b[TN];
            for (int i = 0; i < TM; i += 4) *(float4*)&a[i] = *(const float4*)&As[now][k][4 * ty + i * ROWS];
            for (int j = 0; j < TN; j += 4) *(float4*)&b[j] = *(const float4*)&Bs[now][k][4 * tx + j * COLS];
            for (int i = 0; i < TM; ++i)
                for (int j = 0; j < TN; ++j) sum[i][j] += a[i] * b[j];
        }
        next = now;
        now = now + 1 == STAGES ? 0 : now + 1;
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
