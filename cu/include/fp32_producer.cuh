// The warpgroup that fetches, of rungs 16, 19 and 20. It fills buffer after buffer in shared memory: BK columns
// of BM rows of A, transposed, and BK rows of BN columns of B (the parameters of the rung that includes it). B is a
// box of the TMA unit's where it can have a map. (Quads copied by threads: up to 2% slower. A copy by the unit for
// each row, for which no map is needed: 12% slower, since a warp issues them one by one.)
#pragma once

#include "tma.cuh"

#define PRODUCERS 128  // threads
#define PAD 4          // floats after a transposed column of A: as few as keep a quad aligned
#define A_ROWS (BM / (PRODUCERS / 8))   // rows of A of which a thread copies every eighth float
#define B_ROWS (BK / (PRODUCERS / 32))  // rows of B of which a thread copies every 32nd float else

// By one thread: the barriers of all stages. (A thread for each would take longer: a warp makes them one by one
// even then, and asks each time who is left.)
__device__ inline void make_barriers(Mbarrier* full, Mbarrier* empty, int arrivals)
{
    #pragma unroll
    for (int i = 0; i < STAGES; ++i) mbarrier_init(full + i, PRODUCERS), mbarrier_init(empty + i, arrivals);
    fence_mbarrier_init();
}

// Columns `k` to `end` of A's rows from `row` on, and those rows of B's columns from `col` on. From k to end are
// whole stages, or else it is the end of B, too: a box knows no other.
__device__ inline void fetch(float (*As)[BK][BM + PAD], float (*Bs)[BK][BN], Mbarrier* full, Mbarrier* empty,
                             int& stage, int& parity, const TensorMap& map_b, const float* A, const float* B,
                             unsigned row, unsigned col, int k, int end, int M, int N, int K, int lda,
                             int ldb)
{
    // As in 13: the float of A that this thread copies, eight lanes along k.
    const int lane = threadIdx.x % PRODUCERS, am = lane / 8, ak = lane % 8, a_step = PRODUCERS / 8;
    const bool mapped = aligned16(B, ldb);
    const int last_row = M - 1 - row, last_col = N - 1 - col;
    const auto fetch_b = [&](int k) {
        mbarrier_expect_tx(full + stage, sizeof Bs[stage]);
        tma_load(Bs[stage], map_b, k, col, full + stage);
    };

    // Whole stages: nothing to test, and as few addresses as can be, for the producers take their issue
    // slots from the consumers. What lies past the last row repeats it, past the last column are zeros, or
    // without a map what follows in memory, a gap or the next row: nobody stores it. Where that might be past B's
    // end is no such stage.
    if (lda <= 0x7fffffff / BM) {
        // Where B has no map, a warp copies the floats of a row.
        const int sk = lane / 32, n = lane % 32;
        const unsigned past = max(0, BN - 1 - last_col);
        const int whole = past && !mapped ? min(end, K - (int)((past + ldb - 1) / ldb)) : end;

        const float* b = B + (long long)(k + sk) * ldb + col + n;
        const float* a = A + (long long)row * lda + k + ak;
        int a_row[A_ROWS];
        for (int i = 0; i < A_ROWS; ++i) a_row[i] = min(am + i * a_step, last_row) * lda;

        #pragma unroll 1
        for (; whole - k >= BK; k += BK) {
            mbarrier_wait(empty + stage, parity);  // the consumers have read what was there
            if (mapped) {
                if (lane == 0) fetch_b(k);
            } else {
                const float* from = b;
                #pragma unroll 1  // few registers and little code matter more here
                for (int i = 0; i < B_ROWS; ++i, from += PRODUCERS / 32 * (long long)ldb)
                    for (int j = 0; j < BN / 32; ++j)
                        cp_async4(&Bs[stage][sk + i * (PRODUCERS / 32)][n + j * 32], from + j * 32, true);
            }
            for (int k = 0; k < BK; k += 8)
                for (int i = 0; i < A_ROWS; ++i)
                    cp_async4(&As[stage][ak + k][am + i * a_step], a + a_row[i] + k, true);
            a += BK;
            b += (long long)BK * ldb;
            cp_async_mbarrier_arrive(full + stage);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    }

    // And what is left of k.
    #pragma unroll 1
    for (unsigned next = k; next < end; next += BK) {  // K may be 2^31 - 1
        const int k = next, left = end - k;
        mbarrier_wait(empty + stage, parity);
        if (mapped && lane == 0) fetch_b(k);
        #pragma unroll 1
        for (int i = 0; i < A_ROWS; ++i) {
            const float* a = A + (long long)min(row + am + i * a_step, M - 1u) * lda + k;
            for (int j = ak; j < BK; j += 8)
                cp_async4(&As[stage][j][am + i * a_step], a + j, j < left);
        }
        #pragma unroll 1
        for (int i = mapped ? BK : lane / 32; i < BK; i += PRODUCERS / 32) {
            const float* b = B + (long long)(k + i) * ldb + col;
            for (int j = lane % 32; j < BN; j += 32)
                cp_async4(&Bs[stage][i][j], b + j, i < left && j <= last_col);
        }
        cp_async_mbarrier_arrive(full + stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
}
