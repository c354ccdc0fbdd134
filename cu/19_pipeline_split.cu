// The pipeline, and k shared by the blocks of a cluster
//
// Middling products have too few large tiles for all SMs. Rung 15 shares out k, with small tiles; here the
// tiles stay large, and the pipeline of rung 16 feeds them: a cluster of SPLIT blocks computes a tile, each
// block a part of k, and each adds up a part of the tile from everybody's shared memory, in the order of
// ranks, so that equal inputs give equal bits.
//
// /// kernel
// entry = "matmul"
// min_arch = "sm_90a"
// block = "32 * (BM // WM) * (BN // WN) + 128"
// tile  = ["BM", "BN"]
// grid  = ["TILES_X", "TILES_Y", "SPLIT"]
// where = ["STAGES * BK * (BM + 4 + BN) >= (BM + 4) * BN"]  # the sums take the place of the stages
// shared = "4 * STAGES * BK * (BM + 4 + BN) + 16 * STAGES"
// loads = "BM + BN"
// sass  = ["LDS.128 in loop >= 64", "FFMA share in loop >= 90%", "no LDGSTS in loop", "no BAR in loop",
//          "no LDL", "no STL"]
// claim = "Twice the blocks of rung 16 where its tiles are too few, and 90% of the loop is FFMA still."
//
// [params]
// BM = [128, 64]
// BN = [128]
// BK = [16]
// WM = [32]
// WN = [64]
// STAGES = [6]
// SPLIT = [2, 1, 4, 8]
// ///

#include "cluster.cuh"
#include "pipeline.cuh"
#include "quads.cuh"

#define TM (WM / 4)  // a thread's outputs: the lanes of a warp are 4 x 8, its quads lie 16 rows apart
#define TN (WN / 8)  // and 32 columns
#define CONSUMERS (32 * (BM / WM) * (BN / WN))  // threads; the producers follow them
#define PRODUCERS 128
#define PAD 4    // floats: as few as keep a quad aligned
#define A_ROWS (BM / (PRODUCERS / 8))  // rows of A of which a producer copies every eighth float
#define B_QUADS (BK * BN / 4 / PRODUCERS)

extern "C" __global__ void __cluster_dims__(1, 1, SPLIT) __launch_bounds__(CONSUMERS + PRODUCERS)
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta)
{
    extern __shared__ __align__(128) float memory[];
    auto As = (float(*)[BK][BM + PAD])memory;
    auto Bs = (float(*)[BK][BN])(As + STAGES);
    auto full = (Barrier*)(Bs + STAGES), empty = full + STAGES;

    const int self = threadIdx.x;
    const unsigned row = blockIdx.y * BM, col = blockIdx.x * BN;

    // This block's part of k: as many whole stages as the others have or, at the end, fewer, maybe none.
    const int rank = blockIdx.z, stages = (K - 1) / BK + 1, share = (stages + SPLIT - 1) / SPLIT;
    const int begin = min(rank * share, stages), end = min(begin + share, stages);
    const int from_k = begin * BK, to_k = min((long long)K, (long long)end * BK);

    if (self < STAGES) {
        make_barrier(full + self, PRODUCERS);
        make_barrier(empty + self, CONSUMERS / 32);  // a warp arrives as one
    }
    __syncthreads();  // the barriers exist

    if (self >= CONSUMERS) {
        const int lane = self - CONSUMERS;
        const int am = lane / 8, ak = lane % 8, a_step = PRODUCERS / 8;
        const bool quads = in_quads(B, ldb) && N % 4 == 0;
        int stage = 0, parity = 1, left = to_k - from_k;
        if (quads && col + BN <= N && lda <= 0x7fffffff / BM) {
            const int width = PRODUCERS / BK, k = lane / width, n = lane % width * 4, odd = k % 2;
            const float* from = B + (long long)(from_k + k) * ldb + col + n;
            const float *near = from + odd * width * 4, *far = from + (1 - odd) * width * 4;
            int a_row[A_ROWS];
            for (int i = 0; i < A_ROWS; ++i)  // rows past the last one repeat it: nobody stores them
                a_row[i] = min(am + i * a_step, (int)(M - 1 - row)) * lda;
            const float* a_from = A + (long long)row * lda + from_k + ak;
            #pragma unroll 1
            for (; left >= BK; left -= BK) {
                wait(empty + stage, parity);
                float *to = &Bs[stage][k][n];
                float *to_near = to + odd * width * 4, *to_far = to + (1 - odd) * width * 4;
                for (int i = 0; i < BN / 4 / width; i += 2) {
                    copy_quad_async(to_near + i * width * 4, near + i * width * 4, true);
                    copy_quad_async(to_far + i * width * 4, far + i * width * 4, true);
                }
                near += (long long)BK * ldb, far += (long long)BK * ldb;
                for (int k = 0; k < BK; k += 8)
                    for (int i = 0; i < A_ROWS; ++i)
                        copy_async(&As[stage][ak + k][am + i * a_step], a_from + a_row[i] + k, true);
                a_from += BK;
                arrive_with_copies(full + stage);
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        }
        if (left > 0) {
            const int bk = lane / (BN / 4), bn = lane % (BN / 4) * 4, b_step = PRODUCERS / (BN / 4);
            const int b_count = N - (int)(col + bn);
            const float *a_row[A_ROWS], *b = B + (long long)(to_k - left + bk) * ldb + col + bn;
            for (int i = 0; i < A_ROWS; ++i)
                a_row[i] = A + (long long)min(row + am + i * a_step, M - 1u) * lda + ak + (to_k - left);
            #pragma unroll 1
            for (; left > 0; left -= BK) {
                wait(empty + stage, parity);  // the consumers have read what was there
                for (int k = 0; k < BK; k += 8)
                    for (int i = 0; i < A_ROWS; ++i)
                        copy_async(&As[stage][ak + k][am + i * a_step], a_row[i] + k, ak + k < left);
                for (int i = 0; i < A_ROWS; ++i) a_row[i] += BK;
                if (quads) {
                    for (int i = 0; i < B_QUADS; ++i, b += (long long)b_step * ldb)
                        copy_quad_async(&Bs[stage][bk + i * b_step][bn], b,
                                        bk + i * b_step < left && b_count > 0);
                } else {
                    #pragma unroll 1
                    for (int i = 0; i < B_QUADS; ++i, b += (long long)b_step * ldb)
                        for (int e = 0; e < 4; ++e)
                            copy_async(&Bs[stage][bk + i * b_step][bn + e], b + e,
                                       bk + i * b_step < left && e < b_count);
                }
                arrive_with_copies(full + stage);
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        }
        return;  // who has left counts as arrived at the barriers of the cluster
    }

    const int warp = self / 32, lane = self % 32;
    const int tile_m = warp / (BN / WN) * WM + lane / 2 % 4 * 4;  // this thread's first row quad
    const int tile_n = warp % (BN / WN) * WN + (lane / 8 * 2 + lane % 2) * 4;  // and column quad

    float a[2][TM], b[2][TN];  // fragments of one k, and of the next
    const auto read = [&](int which, const float* as, const float* bs) {
        for (int i = 0; i < TM; i += 4) *(float4*)&a[which][i] = *(const float4*)&as[i * 4];
        for (int j = 0; j < TN; j += 4) *(float4*)&b[which][j] = *(const float4*)&bs[j * 8];
    };

    int stage = 0, parity = 0;
    const float *as = &As[0][0][tile_m], *bs = &Bs[0][0][tile_n];
    float sum[TM][TN] = {};
    if (end > begin) {
        wait(full, 0);
        read(0, as, bs);
    }
    for (int left = end - begin; left > 0; --left) {
        const int done = stage;
        if (left > 1) {
            if (++stage == STAGES) stage = 0, parity ^= 1;
            wait(full + stage, parity);
        }
        #pragma unroll  // which of two fragments must be known to the compiler
        for (int k = 1; k <= BK; ++k) {
            if (k == BK) as = &As[stage][0][tile_m], bs = &Bs[stage][0][tile_n];
            read(k % 2, as + k % BK * (BM + PAD), bs + k % BK * BN);
            for (int j = 0; j < TN; ++j)
                for (int i = 0; i < TM; ++i) {
                    const int m = j % 2 ? TM - 1 - i : i;  // turn round: a[m] is still at hand
                    sum[m][j] += a[(k - 1) % 2][m] * b[(k - 1) % 2][j];
                }
        }
        __syncwarp();
        if (lane == 0) arrive(empty + done);  // may be filled anew
    }

    // Quads of sums are those of one column, turned in pairs: so the registers of sum[m][n] and a[m] differ
    // in parity, that is, lie in different banks.
    asm volatile("bar.sync 1, %0;" :: "n"(CONSUMERS) : "memory");  // all have read the last stage
    const auto sums = (float(*)[BM + PAD])memory;
    #pragma unroll
    for (int j = 0; j < TN; ++j)
        #pragma unroll
        for (int i = 0; i < TM; i += 4)
            *(float4*)&sums[tile_n + j / 4 * 32 + j % 4][tile_m + i * 4] =
                make_float4(sum[i + 1][j], sum[i][j], sum[i + 3][j], sum[i + 2][j]);
    cluster_barrier();  // all sums of this tile are there

    const int columns = BN / SPLIT;
    for (int q = self; q < BM / 4 * columns; q += CONSUMERS) {
        const int n = rank * columns + q / 2 % columns, m = (q / 2 / columns * 2 + q % 2) * 4;
        float total[4] = {};
        #pragma unroll
        for (int other = 0; other < SPLIT; ++other) {
            const float4 v = read_block(other, &sums[n][m]);
            total[0] += v.y, total[1] += v.x, total[2] += v.w, total[3] += v.z;
        }
        float* c = C + (long long)(row + m) * ldc + col + n;
        if (col + n < N)
            #pragma unroll
            for (int i = 0; i < 4; ++i, c += ldc)
                if (row + m + i < M) *c = beta == 0.f ? alpha * total[i] : alpha * total[i] + beta * *c;
    }
    cluster_barrier();  // nobody leaves while others read its memory
}
