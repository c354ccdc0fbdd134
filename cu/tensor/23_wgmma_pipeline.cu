// A warp that fetches, warpgroups that multiply, and results that leave by themselves
//
// One thread of its own asks for boxes, as far ahead as there is room, and is told by barriers where the
// products are done: nobody waits for everybody. The block stays on its SM for tile after tile. Results go
// back through shared memory, box by box, and TMA writes them while the next tile is multiplied. Blocks of a
// cluster can share the boxes of B: each fetches its part for all.
//
// Of a short product half is the way to the first box: it was asked for after 1,200 cycles, when it still waited for
// all barriers to be made, and 2,000 later it is there (H200). Hence the order of things below. More boxes on their
// way do more than larger tiles: 8 stages of 128 x 64 took n = 1024 from 0.94 of cuBLAS to 1.00. So does the order
// of tiles where they are few: with neighbours in a row (GROUP=1), which want the same rows of A at the same time,
// 8192 x 256 x 1024 went from 0.96 to 1.00, 1024 to 1.015; a wide matrix of few rows wants GROUP=2 at least.
//
// /// kernel
// entry = "matmul"
// dtype = "bf16"
// min_arch = "sm_90a"
// block = "2 * BM + 128"
// tile  = ["BM", "BN"]
// grid  = "SMS // CLUSTER * CLUSTER"
// where = ["1024 <= STAGES * (BM + BN) <= 1536", "BN % (64 * CLUSTER) == 0"]
// shared = "STAGES * (128 * (BM + BN) + 16) + 128 * BM * (1 + (BN > 64))"
// loads = "BM + BN"
// sass  = ["HGMMA == 4", "HGMMA in loop == 4", "WARPGROUP.DEPBAR in loop == 1", "no BAR in loop",
//          "UTMALDG", "STSM", "UTMASTG", "no LDL", "no STL"]
// claim = "Nothing in the loop but four products, two barriers and the address of a stage."
// predict = ["seconds < 1 of 22_wgmma at N=4096"]
//
// [tensormaps]
// A = {box = ["BM", 64], swizzle = 128}
// B = {box = [64, 64], swizzle = 128}
// C = {box = [16, 64], swizzle = 128}
//
// [params]
// BM = [128, 64]
// BN = [256, 128, 192, 64]
// STAGES = [4, 3, 6, 8, 12]
// CLUSTER = [1, 2]
// GROUP = [8, 1, 2, 4]
// ///

#include "raster.cuh"
#include "stage16.cuh"
#include "wgmma.cuh"

#define BOXES (BN > 64 ? 2 : 1)  // for a warp's results

#if CLUSTER > 1
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(CONSUMERS + PRODUCERS, 1)
#else
extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 1)
#endif
                       matmul(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                              const __grid_constant__ TensorMap map_c,
                              const ELEMENT* A, const ELEMENT* B, ELEMENT* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta)
{
    if (threadIdx.x == CONSUMERS) prefetch_tensormap(map_a), prefetch_tensormap(map_b);
    extern __shared__ __align__(1024) unsigned char memory[];
    static_assert(BN % (64 * CLUSTER) == 0, "a box of B that no block would fetch");
    const auto stages = (Stage*)memory;
    const auto Cs = (ELEMENT(*)[BOXES][16][64])(stages + STAGES);  // of each warp
    auto full = (Mbarrier*)(Cs + CONSUMERS / 32), empty = full + STAGES;

    // The blocks of a cluster take tiles one above the other.
    const int rank = blockIdx.x % CLUSTER;
    const unsigned first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
    const unsigned tiles_m = (M + BM * CLUSTER - 1u) / (BM * CLUSTER), tiles_n = (N + BN - 1u) / BN;
    const unsigned tiles = tiles_m * tiles_n;
    const auto place_of = [&](unsigned tile) {
        const auto [row, col] = grouped_raster(tile, tiles_m, tiles_n, GROUP);
        return TileIndex{(row * CLUSTER + rank) * BM, col * BN};
    };
    if (first >= tiles) return;  // more SMs than tiles

    const int self = threadIdx.x, lane = self % 32, warp = __shfl_sync(~0u, self / 32, 0);  // alike in a warp
    const bool map_for_a = aligned16(A, lda), map_for_b = aligned16(B, ldb), maps = map_for_a && map_for_b;
    TileIndex place = {};
    if (self == CONSUMERS) {
        place = place_of(first);  // now: its divisions take as long as making the barriers
        // A warpgroup arrives as one, at all blocks.
        make_stage_barriers(full, empty, maps, CONSUMERS / 128 * CLUSTER, [&] {
            if (!maps) return;
            stages[0].fetch_a(map_a, place.row, 0, full);
            if (CLUSTER == 1) stages[0].fetch_b(map_b, 0, place.col, full);
        });
    }
    __syncwarp();
    if (CLUSTER > 1) cluster_sync_relaxed();
    else named_barrier_arrive_or_sync<CONSUMERS + PRODUCERS>(maps && self >= CONSUMERS);

    if (self >= CONSUMERS) {
        if (BM == 128) setmaxnreg_dec<104>();
        int stage = 0, parity = 1;
        if (maps && self == CONSUMERS) {
            if (CLUSTER > 1) stages[0].fetch_b<CLUSTER>(map_b, 0, place.col, full, rank);  // all are ready for it
            ++stage;
            for (unsigned tile = first; tile < tiles; tile += step) {
                if (tile > first) place = place_of(tile);
                for (int left = tile > first ? K : K - BK; left > 0; left -= BK) {
                    mbarrier_wait(empty + stage, parity);  // what was there has been multiplied, in all blocks
                    stages[stage].fetch<CLUSTER>(map_a, map_b, place.row, place.col, K - left, full + stage, true,
                                                 true, rank);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        }
        if (!maps)  // apart, or else what this prepares would delay the first box above
            for (unsigned tile = first; tile < tiles; tile += step) {
                const auto [row, col] = place_of(tile);
                for (int left = K; left > 0; left -= BK) {
                    const int k = K - left;
                    mbarrier_wait(empty + stage, parity);
                    if (self == CONSUMERS)
                        stages[stage].fetch<CLUSTER>(map_a, map_b, row, col, k, full + stage, map_for_a,
                                                     map_for_b, rank);
                    stages[stage].copy(A, B, row, col, k, M, N, K, lda, ldb, map_for_a, map_for_b);
                    mbarrier_arrive(full + stage);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        if (CLUSTER > 1 && self == CONSUMERS) wait_for_all(empty, stage, parity);
    } else {
        if (BM == 128) setmaxnreg_inc<200>();
        // The TMA writes 16 bytes or none of them: at a ragged edge it would write past the end of a row.
        const bool map_for_c = aligned16(C, ldc) && N % 8 == 0 && beta == 0.f;
        const bool words = (unsigned long long)C % 4 == 0 && ldc % 2 == 0;

        float sum[BN / 2];
        int stage = 0, parity = 0;
        for (unsigned tile = first; tile < tiles; tile += step) {
            const auto [tile_row, col] = place_of(tile);
            const unsigned row = tile_row + 16 * warp;
            int last = 0;
            #pragma unroll 1
            for (int left = K; left > 0; left -= BK) {
                mbarrier_wait(full + stage, parity);
                const Descriptor a = make_descriptor(stages[stage].a[warp / 4 * 64], 0, 1024);
                const Descriptor b = make_descriptor(stages[stage].b, 8192, 1024);
                wgmma_fence();
                #pragma unroll
                for (int k = 0; k < BK; k += 16)
                    multiply(ELEMENT(), sum, advance_descriptor(a, 2 * k), advance_descriptor(b, 128 * k), left < K || k > 0);
                wgmma_commit_group();
                wgmma_wait_group<1>();
                if (left < K) release<CLUSTER>(empty + last, self, warp);  // while the youngest products go on
                last = stage;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            wgmma_wait_all(sum);
            release<CLUSTER>(empty + last, self, warp);

            if (alpha != 1.f)
                #pragma unroll
                for (int i = 0; i < BN / 2; ++i) sum[i] *= alpha;
            if (map_for_c) {
                const int r = lane % 16, unit = lane / 16;
                #pragma unroll
                for (int j = 0; j < BN / 64; ++j) {  // a box is on its way while the next is written
                    const auto cs = Cs[warp][j % BOXES];
                    if (lane == 0 && j == 0) tma_store_wait_group_read<0>();  // of the last tile, long ago
                    if (lane == 0 && j >= BOXES) tma_store_wait_group_read<BOXES - 1>();  // what was in this one is read
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
            } else {
                #pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const unsigned r = row + 8 * half + lane / 4;
                    if (r >= M) continue;
                    #pragma unroll
                    for (int i = 2 * half; i < BN / 2; i += 4) {
                        const unsigned s = col + i / 4 * 8 + lane % 4 * 2;
                        store2(C + (long long)r * ldc + s, sum[i], sum[i + 1], N - (int)s, words, 1.f,
                                   beta);
                    }
                }
            }
        }
        if (lane == 0) tma_store_wait_group_read<0>();  // shared memory must outlive them
    }
}
