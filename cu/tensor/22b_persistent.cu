// A persistent kernel: blocks that stay on their SM
//
// In 22a an SM multiplies nothing while a block stores its results and the next block starts and loads its
// first boxes. Here each SM gets one block, which takes tile after tile. The producers know nothing of
// results: while the consumers store a tile, the stages fill with the operands of the next one. The order of
// tiles is now the kernel's choice: bands of GROUP rows, whose tiles share rows of A and columns of B in the
// L2 cache.
//
// /// kernel
// entry = "matmul"
// after = "22a_warp_specialized"
// dtype = "bf16"
// min_arch = "sm_90a"
// block = "2 * BM + 128"
// tile  = ["BM", "BN"]
// grid  = "SMS"
// shared = "STAGES * (128 * (BM + BN) + 16)"
// loads = "BM + BN"
// sass  = ["HGMMA == 4", "HGMMA in loop == 4", "WARPGROUP.DEPBAR in loop == 1", "no BAR in loop",
//          "UTMALDG", "no LDL", "no STL"]
// claim = "A block an SM, and the operands of its next tile arrive while it stores the results of this one."
// predict = ["seconds < 1 of 22a_warp_specialized at N=4096"]
//
// [tensormaps]
// A = {box = ["BM", 64], swizzle = 128}
// B = {box = [64, 64], swizzle = 128}
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

typedef Stage16<ELEMENT, BM, BN, BK> Stage;

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 1)
                       matmul(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                              const ELEMENT* A, const ELEMENT* B, ELEMENT* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const auto stages = (Stage*)memory;
    auto full = (Mbarrier*)(stages + STAGES), empty = full + STAGES;

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

        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const unsigned r = row + 8 * half + lane / 4;
            if (r >= M) continue;
            #pragma unroll
            for (int i = 2 * half; i < BN / 2; i += 4) {
                const unsigned s = col + i / 4 * 8 + lane % 4 * 2;
                store2(C + (long long)r * ldc + s, sum[i], sum[i + 1], N - (int)s, words, alpha, beta);
            }
        }
    }
}
