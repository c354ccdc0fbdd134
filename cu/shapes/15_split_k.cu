// Split-k: several blocks share a tile along k, in a cluster
//
// 512 x 512 outputs are 64 tiles of 64 x 64: half of the SMs would be idle. So SPLIT blocks compute a tile
// together, each a part of k. They form a thread block cluster: they run at the same time and can write to
// each other's shared memory. Each block adds up a part of the tile, for which the others send it their sums
// by st.async. It adds them in the order of ranks, so that equal inputs give equal bits. No workspace, no
// atomics, no second kernel.
//
// Reading the sums of the other blocks instead takes longer: docs/notes/15_split_k.md.
//
// /// kernel
// entry = "matmul"
// after = "14_warp_tiles"
// min_arch = "sm_90"
// block = "32 * (BM // WM) * (BN // WN)"
// tile  = ["BM", "BN"]
// grid  = ["TILES_X", "TILES_Y", "SPLIT"]
// where = ["BN // WN == 2", "STAGES * BK * (BM + 4 + BN) >= BM * BN", "WM * WN // 128 % SPLIT == 0"]
// shared = "4 * STAGES * BK * (BM + 4 + BN) + 16"
// loads = "BM + BN"
// sums  = "fma"
// parts = "SPLIT"
// sass  = ["LDGSTS in loop", "LDS.128 in loop >= 32", "FFMA share in loop >= 70%", "UCGABAR_WAIT",
//          "no LDL", "no STL"]
// claim = "SPLIT times as many blocks: 128 instead of 64 for n = 512 (SPLIT=2), on 132 SMs."
// predict = ["seconds <= 0.5 of 13_cp_async at N=512", "seconds < 1 of cuBLAS at N=512"]
//
// [params]
// BM = [64]
// BN = [64, 128]
// BK = [16]
// WM = [32]
// WN = [32, 64]
// STAGES = [4]
// SPLIT = [2, 4, 8]
// ///

#include "cp_async.cuh"
#include "cluster.cuh"
#include "epilogue.cuh"
#include "vector.cuh"

#define TM (WM / 4)  // a thread's outputs: the lanes of a warp form a 4 x 8 grid, its quads lie 16 rows apart
#define TN (WN / 8)  // and 32 columns
#define THREADS (32 * (BM / WM) * (BN / WN))
#define PAD 4  // floats: as few as keep 16-byte alignment
#define A_ROWS (BM / (THREADS / 8))  // rows of A of which a thread copies every eighth float
#define B_QUADS (BK * BN / 4 / THREADS)
#define QUADS (TM * TN / 4 / SPLIT)  // of each thread's sums that a block adds up

extern "C" __global__ void __cluster_dims__(1, 1, SPLIT) __launch_bounds__(THREADS)
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER)
{
    extern __shared__ __align__(16) float memory[];  // dynamic: it may exceed 48 KB
    auto As = (float(*)[BK][BM + PAD])memory;
    auto Bs = (float(*)[BK][BN])(As + STAGES);
    auto all_received = (Mbarrier*)(Bs + STAGES);

    const int self = threadIdx.x, warp = self / 32, lane = self % 32;
    const int tile_m = warp / (BN / WN) * WM + lane / 2 % 4 * 4;  // this thread's first row quad
    const int tile_n = warp % (BN / WN) * WN + (lane / 8 * 2 + lane % 2) * 4;  // and column quad
    const unsigned row = blockIdx.y * BM;
    const unsigned col = blockIdx.x * BN;

    // The part of k that this block takes: as many whole tiles as the others or, at the end, fewer, maybe none.
    const int rank = blockIdx.z, tiles = (K - 1) / BK + 1, share = (tiles + SPLIT - 1) / SPLIT;
    const long long first = (long long)rank * share * BK;
    const int part = min(share * (long long)BK, K - first);
    A += min(first, (long long)K);
    B += min(first, (long long)K) * ldb;

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

    if (self == 0) {
        mbarrier_init(all_received, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(all_received, (SPLIT - 1) * QUADS * THREADS * sizeof(float4));
    }

    int ahead = part;  // k that are not fetched yet
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
    if (part > 0) read(0, 0, 0);
    int now = 0, next = STAGES - 1;
    for (int left = part; left > 0; left -= BK, ahead -= BK) {
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

    cluster_sync();  // all blocks have read their last tile: sums now go where the tiles were
    const auto received = (float4(*)[QUADS][THREADS])memory;  // from each block; what a warp sends lies side by side
    #pragma unroll
    for (int to = 0; to < SPLIT; ++to) {
        const unsigned there = mapa(&received[rank][0][self], to), barrier = mapa(all_received, to);
        #pragma unroll  // registers cannot be indexed: i and j must be constants
        for (int q = 0; q < QUADS; ++q) {
            const int quad = to * QUADS + q, i = quad / (TN / 4), j = quad % (TN / 4) * 4;
            if (to == rank) received[rank][q][self] = *(float4*)&sum[i][j];
            else st_async(there + q * sizeof *received[0], *(float4*)&sum[i][j], barrier);
        }
    }
    mbarrier_wait(all_received, 0);  // from here on no block accesses the memory of another

    const Epilogue epilogue = MAKE_EPILOGUE(M, N, ldc);
    #pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        const int quad = rank * QUADS + q, i = quad / (TN / 4), j = quad % (TN / 4) * 4;
        const int m = tile_m + i / 4 * 16 + i % 4, n = tile_n + j * 8;
        if (row + m >= M) continue;
        float total[4] = {};
        #pragma unroll
        for (int from = 0; from < SPLIT; ++from) {
            const float4 v = received[from][q][self];
            total[0] += v.x, total[1] += v.y, total[2] += v.z, total[3] += v.w;
        }
        store4(C + (long long)(row + m) * ldc + col + n, total, N - (int)(col + n), aligned16(C, ldc), alpha,
                   beta, epilogue, row + m, col + n);
    }
}
