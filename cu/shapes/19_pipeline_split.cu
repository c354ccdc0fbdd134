// The pipeline of rung 16 with split-k in a cluster
//
// Products of medium size have too few large tiles for all SMs. Rung 15 splits k, but with small tiles. Here
// the tiles stay large and the pipeline of rung 16 feeds them. The SPLIT blocks of a cluster compute a tile
// together, each a part of k. Each adds up a part of the tile, for which the others send it their sums, in the
// order of ranks, so that equal inputs give equal bits.
//
// EACH=1 lets every lane release a stage, not one lane for its warp: for compute-sanitizer's racecheck, see
// docs/notes/19_pipeline_split.md.
//
// /// kernel
// entry = "matmul"
// after = "16_pipeline"
// min_arch = "sm_90a"
// block = "32 * (BM // WM) * (BN // WN) + 128"
// tile  = ["BM", "BN"]
// grid  = ["TILES_X * TILES_Z", "TILES_Y", "SPLIT"]
// where = ["(BM * BN > 8192) == (BK == 32)", "(BK == 32) == (STAGES == 4)",  # what suits each tile best
//          "(BM * BN > 16384) == (WM == 64)", "(WM == 64) == (CHUNK == 8)", "WM * WN // 512 % SPLIT == 0",
//          "STAGES * BK * (BM + 4 + BN) >= BM * BN"]
// shared = "4 * STAGES * BK * (BM + BN + 4 * (1 - TRANSA + TRANSB)) + 16 * STAGES + 16"
// programmatic = "BM * BN > 8192"  # an SM has room for two of the smaller blocks
// loads = "BM + BN"
// sums  = "fma"
// parts = "(SPLIT > 1) * SPLIT"
// sass  = ["LDS.128 in loop >= 48", "FFMA share in loop >= 90%", "no LDGSTS in loop", "no BAR in loop",
//          "UTMALDG if TRANSA or not TRANSB", "ACQBULK if BM * BN > 8192", "PREEXIT if BM * BN > 8192", "no LDL", "no STL"]
// claim = "Twice the blocks of rung 16 where it has too few tiles, and still 90% of the loop is FFMA."
// predict = ["seconds <= 0.5 of 16_pipeline at N=1024"]
//
// [tensormaps]
// A = {box = ["BK", "BM"], where = "TRANSA"}
// B = {box = ["BK", "BN"], where = "not TRANSB"}
//
// [params]
// BM = [64, 128]
// BN = [128, 256]
// BK = [16, 32]
// WM = [32, 64]
// WN = [64]
// STAGES = [6, 4]
// CHUNK = [16, 8]
// SPLIT = [2, 1, 4, 8]
// EACH = [0]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#include "batch.cuh"
#include "cluster.cuh"
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "fp32_producer.cuh"
#include "vector.cuh"
#include "transpose.cuh"

#define TM (WM / 4)  // a thread's outputs: the lanes of a warp form a 4 x 8 grid, its quads lie 16 rows apart
#define TN (WN / 8)  // and 32 columns
#define CONSUMERS (32 * (BM / WM) * (BN / WN))  // threads; the producers follow them
#define TILES_N ((N + BN - 1u) / BN)
#define QUADS (TM / 4 * TN / SPLIT)  // of a thread's sums that a block adds up

#if BATCHED
typedef Fp32Producer<BM, BN, BK, STAGES, MatrixMap> Producer;
#else
typedef Fp32Producer<BM, BN, BK, STAGES> Producer;
#endif

extern "C" __global__ void __cluster_dims__(1, 1, SPLIT)
                       __launch_bounds__(CONSUMERS + PRODUCERS, TM * TN > 64 ? 1 : 0)
                       matmul(MAP_PARAMETERS const float* A, const float* B, float* C,
                              int M, int N, int K, int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER BATCH_PARAMETERS)
{
    extern __shared__ __align__(128) float memory[];
    auto As = (Producer::TileA*)memory;
    auto Bs = (Producer::TileB*)(As + STAGES);
    auto full = (Mbarrier*)(Bs + STAGES), empty = full + STAGES, all_received = empty + STAGES;

    if (BM * BN > 8192) launch_dependents();
    const int self = threadIdx.x;
    const unsigned row = blockIdx.y * BM, col = TILE_OF_MATRIX(TILES_N) * BN;

    // The part of k that this block takes: as many whole stages as the others or, at the end, fewer, maybe none.
    const int rank = blockIdx.z, stages = (K - 1) / BK + 1, share = (stages + SPLIT - 1) / SPLIT;
    const int begin = min(rank * share, stages), end = min(begin + share, stages);
    const int from_k = begin * BK, to_k = min((long long)K, (long long)end * BK);

    if (self == 0) {
        mbarrier_init(all_received, 1);
        Producer::init_barriers(full, empty, EACH ? CONSUMERS : CONSUMERS / 32);
        mbarrier_arrive_expect_tx(all_received, (SPLIT - 1) * QUADS * CONSUMERS * sizeof(float4));
    }
    __syncthreads();  // the barriers exist

    if (self >= CONSUMERS) {
        if (TM * TN > 64) setmaxnreg_dec<88>();
        if (BM * BN > 8192) wait_for_prerequisites();  // the consumers wait for what comes after it
        int stage = 0, parity = 1;
        Producer::load(As, Bs, full, empty, stage, parity,
                       MATRIX_MAP(MAP_A, blockIdx.x / TILES_N, stride_a, sizeof(float)),
                       MATRIX_MAP(MAP_B, blockIdx.x / TILES_N, stride_b, sizeof(float)),
                       A, B, row, col, from_k, to_k, M, N, K, lda, ldb);
        return;  // an exited thread counts as arrived at the barriers of the cluster
    }

    if (TM * TN > 64) setmaxnreg_inc<208>();  // as in 16
    const int warp = __shfl_sync(~0u, self / 32, 0), lane = self % 32;  // uniform in a warp
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
        mbarrier_wait(full, 0);
        read(0, as, bs);
    }
    for (int left = end - begin; left > 0; --left) {
        const int done = stage;
        if (left > 1) {
            if (++stage == STAGES) stage = 0, parity ^= 1;
            mbarrier_wait(full + stage, parity);
        }
        #pragma unroll 1  // all of BK = 32 would be too much code for the instruction cache
        for (int chunk = CHUNK; chunk <= BK; chunk += CHUNK) {
            #pragma unroll  // the index of the fragment must be a constant: registers cannot be indexed
            for (int k = 1; k <= CHUNK; ++k) {
                if (k < CHUNK) {
                    read(k % 2, as + k * Producer::PITCH_A, bs + k * Producer::PITCH_B);
                } else {
                    as = chunk < BK ? as + CHUNK * Producer::PITCH_A : &As[stage][0][tile_m];
                    bs = chunk < BK ? bs + CHUNK * Producer::PITCH_B : &Bs[stage][0][tile_n];
                    read(0, as, bs);
                }
                for (int j = 0; j < TN; ++j)
                    for (int i = 0; i < TM; ++i) {
                        const int m = j % 2 ? TM - 1 - i : i;  // back and forth: a[m] is reused
                        sum[m][j] += a[(k - 1) % 2][m] * b[(k - 1) % 2][j];
                    }
            }
        }
        __syncwarp();
        if (EACH || lane == 0) mbarrier_arrive(empty + done);  // may be filled again
    }

    cluster_sync();  // all blocks have read their last stage: sums now go where the stages were

    // A quad is four sums of one column, swapped in pairs: so the registers of sum[m][n] and a[m] differ in parity,
    // and lie in different register banks. A block adds up some quads of every thread, as in 15, so that what a warp
    // sends at a time lies side by side.
    const auto received = (float4(*)[QUADS][CONSUMERS])memory;  // from each block
    unsigned there[SPLIT], barrier[SPLIT];
    #pragma unroll
    for (int to = 0; to < SPLIT; ++to)
        there[to] = mapa(&received[rank][0][self], to), barrier[to] = mapa(all_received, to);
    #pragma unroll
    for (int i = 0; i < TM; i += 4)
        #pragma unroll
        for (int j = 0; j < TN; ++j) {
            const int quad = i / 4 * TN + j, to = quad / QUADS;
            const float4 v = make_float4(sum[i + 1][j], sum[i][j], sum[i + 3][j], sum[i + 2][j]);
            if (to == rank) received[rank][quad % QUADS][self] = v;
            else st_async(there[to] + quad % QUADS * sizeof *received[0], v, barrier[to]);
        }
    mbarrier_wait(all_received, 0);  // from here on no block accesses the memory of another

    const Epilogue epilogue = MAKE_EPILOGUE(M, N, ldc);
    #pragma unroll
    for (int first = 0; first < QUADS; first += 4) {  // four columns of four rows
        const int quad = rank * QUADS + first;
        const int m = tile_m + quad / TN * 16, n = tile_n + quad % TN / 4 * 32;
        float total[4][4] = {};
        #pragma unroll
        for (int j = 0; j < 4; ++j)
            #pragma unroll
            for (int from = 0; from < SPLIT; ++from) {
                const float4 v = received[from][first + j][self];
                total[0][j] += v.y, total[1][j] += v.x, total[2][j] += v.w, total[3][j] += v.z;
            }
        if (!aligned16(C, ldc)) {
            store_transposed(C, ldc, row + m, col + n, total, M, N, alpha, beta, epilogue);
            continue;
        }
        float* c = C + (long long)(row + m) * ldc + col + n;
        #pragma unroll
        for (int i = 0; i < 4; ++i, c += ldc)
            if (row + m + i < M) store4(c, total[i], N - (int)(col + n), true, alpha, beta, epilogue, row + m + i, col + n);
    }
}
