// TMA stores: results leave through shared memory
//
// In 22b a thread stores its results two elements at a time, and eight lanes of a warp write to eight
// different rows. Here a warp writes 16 x 64 results to shared memory (stmatrix, four 8 x 8 matrices an
// instruction), and TMA stores the box. The warp goes on at once: it writes the next box, then multiplies the
// next tile, while hardware stores this one. Where C cannot have a tensor map, or beta is not 0, threads store
// as before.
//
// /// kernel
// entry = "matmul"
// after = "22b_persistent"
// dtype = "bf16"
// min_arch = "sm_90a"
// block = "2 * BM + 128"
// tile  = ["BM", "BN"]
// grid  = "SMS"
// shared = "STAGES * (128 * (BM + BN) + 16) + 128 * BM * (1 + (BN > 64))"
// loads = "BM + BN"
// sass  = ["HGMMA == 4", "HGMMA in loop == 4", "WARPGROUP.DEPBAR in loop == 1", "no BAR in loop",
//          "UTMALDG", "STSM", "UTMASTG", "no LDL", "no STL"]
// claim = "A warp stores 16 x 64 results with 4 STSM and one thread's UTMASTG, not with 16 STG of a word a lane."
// predict = ["seconds < 1 of 22b_persistent at N=4096"]
//
// [tensormaps]
// A = {box = ["BM", 64], swizzle = 128}
// B = {box = [64, 64], swizzle = 128}
// C = {box = [16, 64], swizzle = 128}
//
// [params]
// BM = [128, 64]
// BN = [256, 128, 64]
// STAGES = [4]
// GROUP = [8, 1]
// ///

#include "raster.cuh"
#include "stage16.cuh"
#include "wgmma.cuh"

#ifndef ELEMENT
#define ELEMENT Bf16
#endif
#define BK 64               // 128 bytes: as wide as the swizzle
#define CONSUMERS (2 * BM)  // threads: a warpgroup for 64 rows; the producers follow them
#define PRODUCERS 128       // one would do, but all of them copy a matrix that cannot have a tensor map
#define BOXES (BN > 64 ? 2 : 1)  // for the results of a warp

typedef Stage16<ELEMENT, BM, BN, BK> Stage;

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 1)
                       matmul(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                              const __grid_constant__ TensorMap map_c,
                              const ELEMENT* A, const ELEMENT* B, ELEMENT* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const auto stages = (Stage*)memory;
    const auto Cs = (ELEMENT(*)[BOXES][16][64])(stages + STAGES);  // of each warp
    auto full = (Mbarrier*)(Cs + CONSUMERS / 32), empty = full + STAGES;

    const int self = threadIdx.x, lane = self % 32, warp = __shfl_sync(~0u, self / 32, 0);  // uniform in a warp
    const unsigned tiles_m = (M + BM - 1u) / BM, tiles_n = (N + BN - 1u) / BN, tiles = tiles_m * tiles_n;
    const auto place_of = [&](unsigned tile) {
        const auto [row, col] = grouped_raster(tile, tiles_m, tiles_n, GROUP);
        return TileIndex{row * BM, col * BN};
    };
    if (blockIdx.x >= tiles) return;  // more SMs than tiles

    const bool map_for_a = aligned16(A, lda), map_for_b = aligned16(B, ldb), maps = map_for_a && map_for_b;
    if (self < STAGES) {
        mbarrier_init(full + self, maps ? 1 : 1 + PRODUCERS);
        mbarrier_init(empty + self, CONSUMERS / 128);  // a warpgroup arrives as one
    }
    fence_mbarrier_init();
    __syncthreads();  // the barriers exist

    if (self >= CONSUMERS) {
        if (BM == 128) setmaxnreg_dec<104>();  // loading needs few registers,
        if (maps && self > CONSUMERS) return;  // TMA needs a single thread
        int stage = 0, parity = 1;  // all stages are empty: the first waits end at once
        for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const auto [row, col] = place_of(tile);
            for (int left = K; left > 0; left -= BK) {
                const int k = K - left;
                mbarrier_wait(empty + stage, parity);  // what was there has been multiplied
                if (self == CONSUMERS)
                    stages[stage].load(map_a, map_b, row, col, k, full + stage, map_for_a, map_for_b);
                if (!maps) {
                    stages[stage].copy(A, B, row, col, k, M, N, K, lda, ldb, map_for_a, map_for_b);
                    mbarrier_arrive(full + stage);
                }
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        }
        return;
    }

    if (BM == 128) setmaxnreg_inc<200>();  // so the consumers take over the rest
    // TMA writes 16 bytes or none of them: at a ragged edge it would write past the end of a row.
    const bool map_for_c = aligned16(C, ldc) && N % 8 == 0 && beta == 0.f;
    const bool words = (unsigned long long)C % 4 == 0 && ldc % 2 == 0;
    float sum[BN / 2];
    int stage = 0, parity = 0;
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const auto [tile_row, col] = place_of(tile);
        const unsigned row = tile_row + 16 * warp;
        int last = 0;
        #pragma unroll 1
        for (int left = K; left > 0; left -= BK) {
            mbarrier_wait(full + stage, parity);
            stages[stage].multiply(sum, warp / 4 * 64, left < K);
            wgmma_wait_group<1>();  // the products of the last stage are done: it may be filled again
            if (left < K && self % 128 == 0) mbarrier_arrive(empty + last);
            last = stage;
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        wgmma_wait_all(sum);
        if (self % 128 == 0) mbarrier_arrive(empty + last);

        if (alpha != 1.f)
            #pragma unroll
            for (int i = 0; i < BN / 2; ++i) sum[i] *= alpha;
        if (map_for_c) {
            const int r = lane % 16, unit = lane / 16;
            #pragma unroll
            for (int j = 0; j < BN / 64; ++j) {  // a box is on its way while the next one is written
                const auto cs = Cs[warp][j % BOXES];
                if (lane == 0 && j == 0) tma_store_wait_group_read<0>();  // the last tile's boxes, long ago
                if (lane == 0 && j >= BOXES) tma_store_wait_group_read<BOXES - 1>();  // what was in this one
                __syncwarp();
                #pragma unroll
                for (int i = 32 * j; i < 32 * j + 32; i += 8)  // 16 columns
                    stmatrix_x4(&cs[r][((i / 4 + unit) % 8 ^ r % 8) * 8],
                                pack<ELEMENT>(sum[i], sum[i + 1]),
                                pack<ELEMENT>(sum[i + 2], sum[i + 3]),
                                pack<ELEMENT>(sum[i + 4], sum[i + 5]),
                                pack<ELEMENT>(sum[i + 6], sum[i + 7]));
                fence_proxy_async();
                __syncwarp();
                if (lane == 0) {
                    tma_store(map_c, row, col + 64 * j, cs);
                    tma_store_commit_group();
                }
            }
            continue;
        }
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const unsigned r = row + 8 * half + lane / 4;
            if (r >= M) continue;
            #pragma unroll
            for (int i = 2 * half; i < BN / 2; i += 4) {
                const unsigned s = col + i / 4 * 8 + lane % 4 * 2;
                store2(C + (long long)r * ldc + s, sum[i], sum[i + 1], N - (int)s, words, 1.f, beta);
            }
        }
    }
    if (lane == 0) tma_store_wait_group_read<0>();  // shared memory must outlive the stores
}
