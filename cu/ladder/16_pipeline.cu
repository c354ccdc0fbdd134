// Warp specialization: a warpgroup that loads, two that compute, in a persistent kernel
//
// On Hopper one FFMA a cycle keeps a scheduler busy, so every other instruction displaces one. Here four
// warps, the producers, do all the loading. They hand full stages to the eight consumers through mbarriers in
// shared memory, which make nobody else wait. Loading needs few registers, so setmaxnreg gives the rest to the
// consumers. TMA loads the tile of B, at the request of one thread; the tile of A has to be transposed, which
// TMA cannot do, so threads copy it float by float. The kernel is persistent: a block stays on its SM and
// computes tile after tile, so that the next tile is being loaded while the results of this one are stored.
//
// /// kernel
// entry = "matmul"
// after = "14_warp_tiles"
// min_arch = "sm_90a"
// block = "32 * (BM // WM) * (BN // WN) + 128"
// tile  = ["BM", "BN"]
// grid  = "SMS"
// where = ["CHUNK < BK"]
// shared = "4 * STAGES * BK * (BM + BN + 4 * (1 - TRANSA + TRANSB)) + 16 * STAGES"
// loads = "BM + BN"
// sums  = "fma"
// sass  = ["LDS.128 in loop >= 48", "FFMA share in loop >= 94%", "no LDGSTS in loop", "no BAR in loop",
//          "UTMALDG if TRANSA or not TRANSB", "USETMAXREG", "no LDL", "no STL"]
// claim = "The loop holds products and the reads of their fragments, nothing else: 95% of it is FFMA."
// predict = ["seconds <= 0.95 of 14_warp_tiles at N=4096", "seconds < 1 of cuBLAS at N=4096"]
//
// [tensormaps]
// A = {box = ["BK", "BM"], where = "TRANSA"}
// B = {box = ["BK", "BN"], where = "not TRANSB"}
//
// [params]
// BM = [128]
// BN = [256]
// BK = [32, 16]
// WM = [64]
// WN = [64]
// STAGES = [4]
// CHUNK = [8, 16]
// GROUP = [8]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#include "epilogue.cuh"
#include "fp32_producer.cuh"
#include "vector.cuh"
#include "transpose.cuh"
#include "raster.cuh"

#define TM (WM / 4)  // a thread's outputs: the lanes of a warp form a 4 x 8 grid, its quads lie 16 rows apart
#define TN (WN / 8)  // and 32 columns
#define CONSUMERS (32 * (BM / WM) * (BN / WN))  // threads; the producers follow them

typedef Fp32Producer<BM, BN, BK, STAGES> Producer;

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 1)
                       matmul(MAP_PARAMETERS const float* A, const float* B, float* C,
                              int M, int N, int K, int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER)
{
    extern __shared__ __align__(128) float memory[];
    auto As = (Producer::TileA*)memory;
    auto Bs = (Producer::TileB*)(As + STAGES);
    auto full = (Mbarrier*)(Bs + STAGES), empty = full + STAGES;

    const unsigned tiles_m = (M + BM - 1u) / BM, tiles_n = (N + BN - 1u) / BN, tiles = tiles_m * tiles_n;
    const auto row_of = [&](unsigned tile) { return grouped_raster(tile, tiles_m, tiles_n, GROUP).row * BM; };
    const auto col_of = [&](unsigned tile) { return grouped_raster(tile, tiles_m, tiles_n, GROUP).col * BN; };
    if (blockIdx.x >= tiles) return;  // more SMs than tiles

    const int self = threadIdx.x;
    // Every consumer arrives: racecheck would not understand that one arrives for its warp.
    if (self == 0) Producer::init_barriers(full, empty, CONSUMERS);
    __syncthreads();  // the barriers exist

    if (self >= CONSUMERS) {
        setmaxnreg_dec<88>();  // fewer would do, but ptxas then allocates worse for the consumers too
        int stage = 0, parity = 1;
        for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x)
            Producer::load(As, Bs, full, empty, stage, parity, MAPS, A, B, row_of(tile), col_of(tile), 0, K, M, N, K,
                           lda, ldb);
        return;
    }

    setmaxnreg_inc<208>();
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
    mbarrier_wait(full, 0);
    read(0, as, bs);
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float sum[TM][TN] = {};
        for (int left = K; left > 0; left -= BK) {
            // Wait for the next stage now, so that the loop can read ahead into it. After the very last stage there
            // is none: what is read ahead then is not used.
            const int done = stage;
            if (left > BK || tile + gridDim.x < tiles) {
                if (++stage == STAGES) stage = 0, parity ^= 1;
                mbarrier_wait(full + stage, parity);
            }
            #pragma unroll 1  // all of BK = 32 would be 67 KB of code, too much for the instruction cache
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
            mbarrier_arrive(empty + done);  // may be filled again
        }

        const Epilogue epilogue = MAKE_EPILOGUE(M, N, ldc);
        const unsigned row = row_of(tile) + tile_m, col = col_of(tile) + tile_n;
        float* c = C + (long long)row * ldc + col;
        const long long next_quad = 13ll * ldc;  // quads lie 16 rows apart: from the fourth row of one to the next
        if (row - tile_m + BM <= M && col - tile_n + BN <= N && aligned16(C, ldc) && beta == 0.f && !EPILOGUE) {
            #pragma unroll
            for (int i = 0; i < TM; ++i, c += i % 4 ? ldc : next_quad)  // no branches: few instructions to fetch
                #pragma unroll
                for (int j = 0; j < TN; j += 4)
                    *(float4*)(c + j * 8) = make_float4(alpha * sum[i][j], alpha * sum[i][j + 1],
                                                        alpha * sum[i][j + 2], alpha * sum[i][j + 3]);
            continue;
        }
        if (!aligned16(C, ldc)) {
            store_transposed(C, ldc, row, col, sum, M, N, alpha, beta, epilogue);
            continue;
        }
        #pragma unroll  // registers cannot be indexed: i and j must be constants
        for (int i = 0; i < TM; ++i, c += i % 4 ? ldc : next_quad) {
            const unsigned m = row + i / 4 * 16 + i % 4;
            if (m >= M) continue;
            #pragma unroll
            for (int j = 0; j < TN; j += 4)
                store4(c + j * 8, &sum[i][j], N - (int)(col + j * 8), true, alpha, beta, epilogue, m, col + j * 8);
        }
    }
}
