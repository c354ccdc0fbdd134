// The producer warpgroup of rungs 16, 19 and 20: it fills stage after stage with a tile of A, transposed, and a tile of
// B. TMA loads B if B has a tensor map; A has to be transposed, which TMA cannot do, so threads copy it float by float.
// (B copied by threads 16 bytes at a time: up to 2% slower. A bulk copy for each row of B, which needs no map: 12%
// slower, since a warp issues them one by one.)
#pragma once

#include "tma.cuh"

constexpr int PRODUCERS = 128;  // threads
constexpr int PAD = 4;          // floats after a transposed column of A: as few as keep 16-byte alignment

template <int TILE_M, int TILE_N, int TILE_K, int NUM_STAGES>
struct Fp32Producer {
    typedef float TileA[TILE_K][TILE_M + PAD];
    typedef float TileB[TILE_K][TILE_N];
    static constexpr int A_ROWS = TILE_M / (PRODUCERS / 8);   // rows of A of which a thread copies every 8th float
    static constexpr int B_ROWS = TILE_K / (PRODUCERS / 32);  // rows of B of which a thread copies every 32nd float

    // Called by one thread: initialise the barriers of all stages; `readers` arrivals say that a stage is empty.
    // (A thread for each barrier would take longer: the warp runs them one by one all the same.)
    __device__ static void init_barriers(Mbarrier* full, Mbarrier* empty, int readers)
    {
        #pragma unroll
        for (int i = 0; i < NUM_STAGES; ++i) mbarrier_init(full + i, PRODUCERS), mbarrier_init(empty + i, readers);
        fence_mbarrier_init();
    }

    // Load columns k to `end` of A's rows from `row` on, and those rows of B's columns from `col` on. The range is
    // a whole number of stages, or ends with K: a box of B is cut off at the end of the matrix only.
    __device__ static void load(TileA* As, TileB* Bs, Mbarrier* full, Mbarrier* empty, int& stage, int& parity,
                                const TensorMap& map_b, const float* A, const float* B, unsigned row, unsigned col,
                                int k, int end, int M, int N, int K, int lda, int ldb)
    {
        // As in 13: the float of A that this thread copies, eight lanes along k.
        const int lane = threadIdx.x % PRODUCERS, am = lane / 8, ak = lane % 8, a_step = PRODUCERS / 8;
        const bool mapped = aligned16(B, ldb);
        const int last_row = M - 1 - row, last_col = N - 1 - col;
        const auto load_b = [&](int k) {
            mbarrier_expect_tx(full + stage, sizeof Bs[stage]);
            tma_load(Bs[stage], map_b, k, col, full + stage);
        };

        // Whole stages need no tests, and few instructions for addresses: the producers compete with the consumers
        // for issue slots. Rows past the last one of A repeat it. Columns past the last one of B are zeros or, without
        // a map, whatever follows in memory: nobody stores those outputs. Stages that might read past the end of B
        // are left to the loop below.
        if (lda <= 0x7fffffff / TILE_M) {
            // Without a map, each warp copies rows of B.
            const int sk = lane / 32, n = lane % 32;
            const unsigned past = max(0, TILE_N - 1 - last_col);
            const int whole = past && !mapped ? min(end, K - (int)((past + ldb - 1) / ldb)) : end;

            const float* b = B + (long long)(k + sk) * ldb + col + n;
            const float* a = A + (long long)row * lda + k + ak;
            int a_row[A_ROWS];
            for (int i = 0; i < A_ROWS; ++i) a_row[i] = min(am + i * a_step, last_row) * lda;

            #pragma unroll 1
            for (; whole - k >= TILE_K; k += TILE_K) {
                mbarrier_wait(empty + stage, parity);  // the consumers have read what was there
                if (mapped) {
                    if (lane == 0) load_b(k);
                } else {
                    const float* from = b;
                    #pragma unroll 1  // few registers and little code matter more here
                    for (int i = 0; i < B_ROWS; ++i, from += PRODUCERS / 32 * (long long)ldb)
                        for (int j = 0; j < TILE_N / 32; ++j)
                            cp_async4(&Bs[stage][sk + i * (PRODUCERS / 32)][n + j * 32], from + j * 32, true);
                }
                for (int k = 0; k < TILE_K; k += 8)
                    for (int i = 0; i < A_ROWS; ++i)
                        cp_async4(&As[stage][ak + k][am + i * a_step], a + a_row[i] + k, true);
                a += TILE_K;
                b += (long long)TILE_K * ldb;
                cp_async_mbarrier_arrive(full + stage);
                if (++stage == NUM_STAGES) stage = 0, parity ^= 1;
            }
        }

        // The rest of k, with tests.
        #pragma unroll 1
        for (unsigned next = k; next < end; next += TILE_K) {  // unsigned: K may be 2^31 - 1
            const int k = next, left = end - k;
            mbarrier_wait(empty + stage, parity);
            if (mapped && lane == 0) load_b(k);
            #pragma unroll 1
            for (int i = 0; i < A_ROWS; ++i) {
                const float* a = A + (long long)min(row + am + i * a_step, M - 1u) * lda + k;
                for (int j = ak; j < TILE_K; j += 8)
                    cp_async4(&As[stage][j][am + i * a_step], a + j, j < left);
            }
            #pragma unroll 1
            for (int i = mapped ? TILE_K : lane / 32; i < TILE_K; i += PRODUCERS / 32) {
                const float* b = B + (long long)(k + i) * ldb + col;
                for (int j = lane % 32; j < TILE_N; j += 32)
                    cp_async4(&Bs[stage][i][j], b + j, i < left && j <= last_col);
            }
            cp_async_mbarrier_arrive(full + stage);
            if (++stage == NUM_STAGES) stage = 0, parity ^= 1;
        }
    }
};
