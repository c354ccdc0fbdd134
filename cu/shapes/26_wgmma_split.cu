// Split-k in a cluster on the tensor cores, for products with too few tiles for all SMs
//
// 128 x 1024 outputs are 32 tiles of 64 x 64, for 132 SMs. If k is deep, SPLIT blocks share a tile, as in rung
// 19: they form a cluster, and each computes a part of k. Then each block adds up some columns of the tile,
// for which the others send it their sums by st.async. It adds in the order of ranks, so that equal inputs
// give equal bits.
//
// A cluster must fit into one GPC of the GPU. With one block an SM an H200 has room for 39 clusters of 3, 30
// of 4, 22 of 5, 17 of 6, 15 of 7 or 8. Measurements: docs/notes/26_wgmma_split.md.
//
// /// kernel
// entry = "matmul"
// after = "23_wgmma_pipeline"
// dtype = ["bf16", "fp16"]
// aliases = {fp16 = "27_wgmma_split_fp16"}
// min_arch = "sm_90a"
// block = "2 * BM + 128"
// tile  = ["BM", "BN"]
// grid  = ["TILES_X", "TILES_Y", "SPLIT"]
// where = ["768 <= STAGES * (BM + BN) <= 1536", "BM + BN <= 320",
//          "128 * STAGES * (BM + BN) + 32 * BM * SPLIT * ((BN // 8 + SPLIT - 1) // SPLIT) <= 231936"]
// shared = "STAGES * (128 * (BM + BN) + 16) + 32 * BM * SPLIT * ((BN // 8 + SPLIT - 1) // SPLIT) + 16"
// programmatic = 1
// loads = "BM + BN"
// sums  = "wgmma"
// parts = "(SPLIT > 1) * SPLIT"
// sass  = ["HGMMA == 4", "HGMMA in loop == 4", "WARPGROUP.DEPBAR in loop == 1", "no BAR in loop",
//          "UTMALDG", "no BRA.U.ANY", "UCGABAR_WAIT", "ACQBULK", "PREEXIT", "no LDL", "no STL"]
// claim = "SPLIT times as many blocks: 96, not 32, for 128 x 1024 outputs (SPLIT=3), each with a third of k."
// predict = ["seconds <= 0.7 of 23_wgmma_pipeline at M=512 N=512 K=16384"]
//
// [tensormaps]
// A = {promotion = "256 - 128 * TRANSA", box = ["BM + TRANSA * (64 - BM)", 64], swizzle = 128}
// B = {promotion = "128 + 128 * TRANSB", box = ["64 + TRANSB * (BN - 64)", 64], swizzle = 128}
//
// [params]
// BM = [64, 128]
// BN = [64, 128, 256]
// STAGES = [8, 6, 4, 12]
// SPLIT = [2, 3, 4, 5, 6, 7, 8, 1]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#include "cluster.cuh"
#include "dependent_launch.cuh"
#include "stage16.cuh"
#include "wgmma.cuh"

#ifndef ELEMENT
#define ELEMENT Bf16
#endif
#include "epilogue.cuh"

#define BK 64               // 128 bytes: as wide as the swizzle
#define CONSUMERS (2 * BM)  // threads: a warpgroup for 64 rows; the producers follow them
#define PRODUCERS 128       // one would do, but all of them copy a matrix that cannot have a tensor map

#define QUADS (BN / 8)      // of a thread's sums, each two columns of two rows
#define FIRST(rank) (((rank) * QUADS + SPLIT - 1) / SPLIT)  // of the quads that this block adds up
#define MOST FIRST(1)       // quads that a block adds up; some have one less

typedef Stage16<ELEMENT, BM, BN, BK, TRANSA, !TRANSB> Stage;

extern "C" __global__ void __cluster_dims__(1, 1, SPLIT) __launch_bounds__(CONSUMERS + PRODUCERS, 1)
                       matmul(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                              const ELEMENT* A, const ELEMENT* B, OUT* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER)
{
    if (threadIdx.x == CONSUMERS) prefetch_tensormap(map_a), prefetch_tensormap(map_b);
    extern __shared__ __align__(1024) unsigned char memory[];
    const auto stages = (Stage*)memory;
    auto full = (Mbarrier*)(stages + STAGES), empty = full + STAGES;
    const auto received = (float4(*)[MOST][CONSUMERS])(empty + STAGES);  // from each block
    auto all_received = (Mbarrier*)(received + SPLIT);

    const int self = threadIdx.x, lane = self % 32, warp = __shfl_sync(~0u, self / 32, 0);  // uniform in a warp
    const unsigned row = blockIdx.y * BM, col = blockIdx.x * BN;

    // The part of k that this block takes, in stages; maybe none.
    const int rank = blockIdx.z, stages_of_k = (K - 1) / BK + 1;
    const int begin = (long long)stages_of_k * rank / SPLIT, end = (long long)stages_of_k * (rank + 1) / SPLIT;

    const bool map_for_a = aligned16(A, lda), map_for_b = aligned16(B, ldb), maps = map_for_a && map_for_b;
    if (warp == CONSUMERS / 32 && elect_one()) {
        // A warpgroup arrives as one.
        init_stage_barriers<STAGES>(full, empty, maps ? 1 : 1 + PRODUCERS, CONSUMERS / 128, [&] {
            if (maps) wait_for_prerequisites();  // the consumers wait for what comes after it
            if (maps && begin < end) stages[0].load(map_a, map_b, row, col, begin * BK, full);
        });
        mbarrier_init(all_received, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(all_received,
                                  (SPLIT - 1) * (FIRST(rank + 1) - FIRST(rank)) * sizeof *received[0]);
    }
    __syncwarp();
    cluster_arrive_relaxed();
    named_barrier_arrive_or_sync<CONSUMERS + PRODUCERS>(maps && self >= CONSUMERS);

    if (self >= CONSUMERS) {
        int stage = 0, parity = 1;
        if (maps && warp == CONSUMERS / 32 && elect_one()) {
            ++stage;
            for (int step = begin + 1; step < end; ++step) {
                mbarrier_wait(empty + stage, parity);  // what was there has been multiplied
                stages[stage].load(map_a, map_b, row, col, step * BK, full + stage);
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        }
        if (!maps) wait_for_prerequisites();
        if (!maps)  // in a loop of its own, as in 23
            for (int step = begin; step < end; ++step) {
                const int k = step * BK;
                mbarrier_wait(empty + stage, parity);
                if (warp == CONSUMERS / 32 && elect_one())
                    stages[stage].load(map_a, map_b, row, col, k, full + stage, map_for_a, map_for_b);
                stages[stage].copy(A, B, row, col, k, M, N, K, lda, ldb, map_for_a, map_for_b);
                mbarrier_arrive(full + stage);
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        return;  // an exited thread counts as arrived at the barriers of the cluster
    }

    float sum[BN / 2] = {};
    int stage = 0, parity = 0, last = 0;
    #pragma unroll 1
    for (int step = begin; step < end; ++step) {
        mbarrier_wait(full + stage, parity);
        stages[stage].multiply(sum, warp / 4 * 64, true);
        wgmma_wait_group<1>();  // the products of the last stage are done: it may be filled again
        if (self % 128 == 0 && step > begin) mbarrier_arrive(empty + last);
        last = stage;
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    wgmma_wait_all(sum);
    launch_dependents();  // not before: the next kernel's blocks would crowd where there is room now

    // Send each block the sums that it adds up.
    cluster_wait();  // all blocks have begun
    unsigned there[SPLIT], barrier[SPLIT];
    #pragma unroll
    for (int to = 0; to < SPLIT; ++to)
        there[to] = mapa(&received[rank][0][self], to), barrier[to] = mapa(all_received, to);
    #pragma unroll
    for (int j = 0; j < QUADS; ++j) {
        const int to = j * SPLIT / QUADS;
        const float4 v = make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
        if (to == rank) received[rank][j - FIRST(to)][self] = v;  // not sent: st.async to the block itself is no faster
        else st_async(there[to] + (j - FIRST(to)) * sizeof *received[0], v, barrier[to]);
    }
    mbarrier_wait(all_received, 0);  // from here on no block accesses the memory of another

    float4 total[MOST] = {};
    #pragma unroll
    for (int i = 0; i < MOST; ++i)
        #pragma unroll
        for (int from = 0; from < SPLIT; ++from) {
            const float4 v = received[from][i][self];
            total[i].x += v.x, total[i].y += v.y, total[i].z += v.z, total[i].w += v.w;
        }
    const unsigned m = row + 16 * warp + lane / 4, n = col + 8 * FIRST(rank) + lane % 4 * 2;
    const int count = FIRST(rank + 1) - FIRST(rank);
    const Epilogue epilogue = MAKE_EPILOGUE(M, N, ldc);
    const bool pairs = (unsigned long long)C % sizeof(OUT[2]) == 0 && ldc % 2 == 0;
    if (pairs && beta == 0.f && row + BM <= M && col + BN <= N && !EPILOGUE)
        #pragma unroll
        for (int i = 0; i < MOST && i < count; ++i) store_whole_fragment((ELEMENT*)C, ldc, m, n + 8 * i, total[i], alpha);
    else
        #pragma unroll
        for (int i = 0; i < MOST && i < count; ++i)
            store_fragment(C, ldc, m, n + 8 * i, total[i], M, N, pairs, alpha, beta, epilogue);
}
