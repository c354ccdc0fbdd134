// Split-k between blocks anywhere on the GPU, through global memory
//
// In rung 26 a cluster shares a tile. That limits it to 8 blocks, and to what fits into one GPC: an H200 has
// room for 17 clusters of 6 but only for 15 of 7 or 8. So 512 x 512 outputs with a deep k, 16 tiles of 128 x
// 128, keep just 96 SMs busy. Here SMs / tiles blocks share a tile, wherever they run. Each writes its sums to
// a workspace and increments a counter of the tile. When all have done so, each adds up a part of the tile,
// always in the same order, so that equal inputs give equal bits. This takes longer than an exchange through
// shared memory: it pays for deep k only.
//
// Blocks that wait for each other must run at the same time: the launch is cooperative. Clusters of two share the
// boxes of B, as in rung 23: their tiles lie one above the other.
//
// wgmma multiplies 64 rows at a time, but as many columns as one likes. If M is 200 and N is 8192, tiles of 200 x 128
// fit better than those of 128 x 192: the product is computed from its other side (ACROSS=1), C^T = B^T A^T, as in 35.
// A cluster then shares the boxes of A, and its tiles lie side by side.
// Measurements and what did not help: docs/notes/29_wgmma_grid_split.md.
//
// /// kernel
// entry = "matmul"
// after = "23_wgmma_pipeline"
// dtype = ["bf16", "fp16"]
// aliases = {fp16 = "30_grid_split_fp16"}
// min_arch = "sm_90a"
// block = "2 * P + 128"
// tile  = ["BM", "BN"]
// grid  = "SMS // CLUSTER * CLUSTER"
// where = ["P % 64 == 0", "P <= 192", "P <= 128 or BM * BN == 24576",
//          "1024 <= DEEP * (BM + BN)", "DEEP * LINES <= 1792"]
// shared = "DEEP * (128 * LINES + 16)"
// cooperative = true
// workspace = "16 * SMS + 4 * SMS * BM * BN"
// loads = "BM + BN"
// sass  = ["HGMMA == 4", "HGMMA in loop == 4", "WARPGROUP.DEPBAR in loop == 1", "no BAR in loop",
//          "UTMALDG", "no BRA.U.ANY", "no LDL", "no STL"]
// claim = "128 busy SMs where clusters of 6 keep 96 busy: 16 tiles, each shared by 8 blocks."
// predict = ["seconds <= 0.9 of 26_wgmma_split at M=512 N=512 K=16384"]
//
// [names]
// P = "ACROSS * BN + (1 - ACROSS) * BM"  # the side of which a warpgroup multiplies 64 at a time
// LINES = "BM + TRANSA * (-BM % 64) + BN + (1 - TRANSB) * (-BN % 64)"  # of 128 bytes, in a stage
// DEEP = "STAGES + (STAGES == 0) * (1792 // LINES)"  # 0: as many as fit
//
// [tensormaps]
// # Of what the blocks of a cluster share each loads a part, as in 23: rows, whole boxes, or a part of each box's k.
// A = {promotion = "256 - 128 * TRANSA", box = ["""(1 - TRANSA) * BM // (1 + ACROSS * (CLUSTER - 1)) \
//                + TRANSA * 64 // (1 + ACROSS * ((BM + 63) // 64 % CLUSTER > 0) * (CLUSTER - 1))""", 64], swizzle = 128}
// B = {promotion = "128 + 128 * TRANSB", box = ["""TRANSB * BN // (1 + (1 - ACROSS) * (CLUSTER - 1)) \
//                + (1 - TRANSB) * 64 // (1 + (1 - ACROSS) * ((BN + 63) // 64 % CLUSTER > 0) * (CLUSTER - 1))""", 64], swizzle = 128}
//
// [params]
// BM = [128, 64, 80, 96, 112, 144, 160, 176, 192, 208, 224, 256]
// BN = [128, 64, 80, 96, 112, 144, 160, 176, 192, 208, 224, 256]
// STAGES = [6, 0, 4]
// CLUSTER = [2, 1]
// ACROSS = [0, 1]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#include "grid_sync.cuh"
#include "stage16.cuh"
#include "wgmma.cuh"

#ifndef ELEMENT
#define ELEMENT Bf16
#endif
#include "epilogue.cuh"

#define BK 64               // 128 bytes: as wide as the swizzle
#define CONSUMERS (2 * BP)  // threads: a warpgroup for 64 rows; the producers follow them
#define PRODUCERS 128       // one would do, but all of them copy a matrix that cannot have a tensor map

// The sides of a tile: P, of which a warpgroup multiplies 64, and Q.
#define BP (ACROSS ? BN : BM)
#define BQ (ACROSS ? BM : BN)
#define QUADS (BQ / 8)      // of a thread's sums, each two of Q at two places of P

typedef Stage16<ELEMENT, BP, BQ, BK, (ACROSS ? !TRANSB : TRANSA), (ACROSS ? TRANSA : !TRANSB)> Stage;
constexpr int DEEP = STAGES ? STAGES : 1792 * 128 / sizeof(Stage);  // stages

#if CLUSTER > 1
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(CONSUMERS + PRODUCERS, 1)
#else
extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 1)
#endif
                       matmul(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                              const ELEMENT* A, const ELEMENT* B, OUT* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER, unsigned* workspace)
{
    if (threadIdx.x == CONSUMERS) prefetch_tensormap(map_a), prefetch_tensormap(map_b);
    extern __shared__ __align__(1024) unsigned char memory[];
    const auto stages = (Stage*)memory;
    auto full = (Mbarrier*)(stages + DEEP), empty = full + DEEP;

    unsigned* counters = workspace;  // for each tile: how many blocks have written their sums
    auto parts = (float4(*)[QUADS][CONSUMERS])(workspace + 4 * gridDim.x);  // the sums of each block

    const Side<ELEMENT> a = {&map_a, A, lda, M, aligned16(A, lda)}, b = {&map_b, B, ldb, N, aligned16(B, ldb)};
    const Side<ELEMENT> p = ACROSS ? b : a, q = ACROSS ? a : b;
    const bool maps = p.mapped && q.mapped;

    // The blocks of a cluster take tiles that are neighbours along P, and the same stages of k. The first `sharers` clusters
    // share the first pair of tiles, and so on; each takes every `sharers`-th stage. If there are tiles for more than
    // half of the clusters, each cluster takes whole tiles in turn.
    const unsigned cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER, place = blockIdx.x % CLUSTER;
    const unsigned tiles_q = (q.extent + BQ - 1u) / BQ;
    const unsigned tiles = (p.extent + BP * CLUSTER - 1u) / (BP * CLUSTER) * tiles_q;
    const auto p_of = [&](unsigned tile) { return (tile / tiles_q * CLUSTER + place) * BP; };
    const auto q_of = [&](unsigned tile) { return tile % tiles_q * BQ; };
    const int stages_of_k = (K - 1) / BK + 1;
    const unsigned sharers = max(1u, min(clusters / tiles, (unsigned)stages_of_k));
    const unsigned first = cluster / sharers, step = clusters / sharers, rank = cluster % sharers;
    if (first >= min(tiles, step)) return;  // more SMs than shares

    const int self = threadIdx.x, lane = self % 32, warp = __shfl_sync(~0u, self / 32, 0);  // uniform in a warp
    if (warp == CONSUMERS / 32 && elect_one()) {
        // A warpgroup arrives as one, in all blocks.
        init_stage_barriers<DEEP>(full, empty, maps ? 1 : 1 + PRODUCERS, CONSUMERS / 128 * CLUSTER, [&] {
            if (!maps) return;
            stages[0].load_own<CLUSTER>(*p.map, *q.map, p_of(first), q_of(first), rank * BK, full);
        });
    }
    __syncwarp();
    if (CLUSTER > 1) cluster_sync_relaxed();
    else named_barrier_arrive_or_sync<CONSUMERS + PRODUCERS>(maps && self >= CONSUMERS);

    int stage = 0;
    if (self >= CONSUMERS) {
        if (BP == 128) setmaxnreg_dec<104>();
        if (BP == 192) setmaxnreg_dec<80>();
        int parity = 1;
        if (maps && warp == CONSUMERS / 32 && elect_one()) {
            stages[0].load_rest<CLUSTER>(*p.map, *q.map, p_of(first), q_of(first), rank * BK, full, place);
            ++stage;
            for (unsigned tile = first; tile < tiles; tile += step)
                for (int part = tile > first ? rank : rank + sharers; part < stages_of_k; part += sharers) {
                    mbarrier_wait(empty + stage, parity);  // what was there has been multiplied
                    stages[stage].load<CLUSTER>(*p.map, *q.map, p_of(tile), q_of(tile), part * BK, full + stage, true,
                                                true, place);
                    if (++stage == DEEP) stage = 0, parity ^= 1;
                }
        }
        if (!maps)  // in a loop of its own, as in 23
            for (unsigned tile = first; tile < tiles; tile += step)
                for (int part = rank; part < stages_of_k; part += sharers) {
                    mbarrier_wait(empty + stage, parity);
                    if (warp == CONSUMERS / 32 && elect_one())
                        stages[stage].load<CLUSTER>(*p.map, *q.map, p_of(tile), q_of(tile), part * BK, full + stage,
                                                    p.mapped, q.mapped, place);
                    stages[stage].copy(p.from, q.from, p_of(tile), q_of(tile), part * BK, p.extent, q.extent, K, p.ld,
                                       q.ld, p.mapped, q.mapped);
                    mbarrier_arrive(full + stage);
                    if (++stage == DEEP) stage = 0, parity ^= 1;
                }
        if (CLUSTER > 1 && warp == CONSUMERS / 32 && elect_one()) producer_tail<DEEP>(empty, stage, parity);
        return;
    }

    if (BP == 128) setmaxnreg_inc<200>();
    if (BP == 192) setmaxnreg_inc<144>();
    const bool pairs = (unsigned long long)C % sizeof(OUT[2]) == 0 && ldc % 2 == 0;
    int parity = 0;
    for (unsigned tile = first; tile < tiles; tile += step) {
        float sum[BQ / 2];
        int last = 0;
        #pragma unroll 1
        for (int part = rank; part < stages_of_k; part += sharers) {
            mbarrier_wait(full + stage, parity);
            stages[stage].multiply(sum, warp / 4 * 64, part > rank);
            wgmma_wait_group<1>();  // the products of the last stage are done: it may be filled again
            if (part > rank) consumer_release<CLUSTER>(empty + last, self, warp);
            last = stage;
            if (++stage == DEEP) stage = 0, parity ^= 1;
        }
        wgmma_wait_all(sum);
        consumer_release<CLUSTER>(empty + last, self, warp);

        // Floats 4j to 4j + 3 are of Q 8j and the next, at two places of P.
        const unsigned place_p = p_of(tile) + 16 * warp + lane / 4, place_q = q_of(tile) + lane % 4 * 2;
        const Epilogue epilogue = MAKE_EPILOGUE(M, N, ldc);
        const auto store = [&](int j, float4 v) {
            store_fragment<ACROSS>(C, ldc, place_p, place_q + 8 * j, v, M, N, pairs, alpha, beta, epilogue);
        };
        if (sharers == 1) {
            #pragma unroll
            for (int j = 0; j < QUADS; ++j)
                store(j, make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]));
            continue;
        }

        // The part that this block adds up stays in shared memory, where the stages were: a block that shares a tile
        // has no other tile, so they are not needed any more.
        const unsigned begin = QUADS * rank / sharers, end = QUADS * (rank + 1) / sharers;  // its quads
        const auto own = (float4(*)[CONSUMERS])memory;
        #pragma unroll
        for (int j = 0; j < QUADS; ++j)
            if (j - begin >= end - begin)
                parts[blockIdx.x][j][self] =
                    make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
        named_barrier_sync<CONSUMERS>();  // the stores of all threads precede the release below
        #pragma unroll
        for (int j = 0; j < QUADS; ++j)
            if (j - begin < end - begin)
                own[j][self] = make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
        if (self == 0) {
            // Block 0 adds so much that all blocks together flip the highest bit and leave 0 below it. Each waits until
            // the bit has flipped, and nobody has to reset the counter for the next launch. (The grid barrier of
            // cooperative groups works like this.)
            unsigned* counter = counters + tile * CLUSTER + place;
            const unsigned before = atomic_add_release(counter, rank ? 1 : 0x80000000 - (sharers - 1));
            while ((load_acquire(counter) ^ before) >> 31 == 0) {}
        }
        named_barrier_sync<CONSUMERS>();
        const unsigned low = blockIdx.x - rank * CLUSTER;
        // The sums of the other blocks, in their order, and then its own.
        const auto part = [&](unsigned i) { return &parts[low + (i < rank ? i : i + 1) * CLUSTER][0][0]; };
        const auto store_at = [&](unsigned at, float4 v) {
            const float4 o = own[0][at];
            v.x += o.x, v.y += o.y, v.z += o.z, v.w += o.w;
            store(at / CONSUMERS, v);
        };
        if (sharers <= 8)
            reduce_parts<CONSUMERS, 2, 8>(part, 0, sharers - 2, begin * CONSUMERS + self, end * CONSUMERS, store_at);
        else
            reduce_parts<CONSUMERS, 1, 16>(part, 0, sharers - 2, begin * CONSUMERS + self, end * CONSUMERS, store_at);
    }
}
