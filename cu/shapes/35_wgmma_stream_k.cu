// Every SM the same share of k, and tiles as thin as the product
//
// Eight rows times a weight of 4096 x 14336 only have to read the weight. Rung 26 takes 64 x 256 tiles and cuts each
// into 3 parts: 168 blocks are two rounds on 132 SMs, the second a quarter full, and of each A tile 56 rows are zeros.
// Here the stages of all tiles stand in one line, and each SM takes a piece of it, as in rung 20. One side of a tile
// is always 128, and on tensor cores that side is the rows: if it lies along N, the product is computed from its other
// side, C^T = B^T A^T. The other side may be as thin as 8, the least that wgmma multiplies.
//
// A tile that several blocks share is added up by the one that comes last, always in the same order; none waits.
// With SHARE=0 the pieces end where tiles end.
//
// Adding up takes 2 us and more. Where tiles of 64 by the thin side, or a thin side cut in two, are as many as there are
// SMs, SHARE=0 needs none of it. As many blocks then read the same from the L2 cache, so those of a cluster (CLUSTER=2, 4)
// share what they have in common, as in 23: one above the other columns of B, side by side (ALONG_N=1) rows of A, or two by
// two (ALONG_N=2) both. Eight rows among four blocks are loaded whole, by another block for each stage.
//
// /// kernel
// entry = "matmul"
// after = "26_wgmma_split"
// dtype = ["bf16", "fp16"]
// min_arch = "sm_90a"
// block = "256 + 128 * (BM == 128 or BN == 128)"
// tile  = ["BM", "BN"]
// grid  = "max(CLUSTER, (CLUSTER < 4) * (SMS // CLUSTER * CLUSTER) + (CLUSTER == 4) * (10 * SMS // 44 * 4))"
// where = ["BM == 64 or BM == 128 or BN == 64 or BN == 128", "1024 <= DEEP * (BM + BN)", "DEEP * LINES <= 1792", "ALONG_N < CLUSTER"]
// shared = "DEEP * (128 * LINES + 16)"
// workspace = "16 * SMS + SHARE * 8 * SMS * BM * BN"
// programmatic = 1
// loads = "BM + BN"
// sums  = "wgmma"
// parts = "SHARE == 0"
// sass  = ["HGMMA == 4", "HGMMA in loop == 4", "UTMALDG", "no BRA.U.ANY", "ACQBULK", "PREEXIT", "no LDL", "no STL"]
// claim = "Each SM reads 1/132 of the weight: 27 stages of 16 KB, where two of three SMs of rung 26 read 22 of 32 KB twice."
//
// [names]
// WIDE_A = "64 - 32 * TRANSA * (BM <= 32)"  # columns of a box
// WIDE_B = "64 - 32 * (1 - TRANSB) * (BN <= 32)"
// LINES = "BM + TRANSA * (-BM % WIDE_A) + BN + (1 - TRANSB) * (-BN % WIDE_B)"  # of 128 bytes, in a stage
// DEEP = "STAGES + (STAGES == 0) * (1792 // LINES)"  # 0: as many as fit
// SHARE_B = "max(ALONG_N, (ALONG_N == 0) * CLUSTER)"
// SHARE_A = "CLUSTER // SHARE_B"
// OF_A = "1 + (BM % (8 * SHARE_A) == 0) * (SHARE_A - 1)"  # parts of a K-major tile: one where its rows cannot be divided
// OF_B = "1 + (BN % (8 * SHARE_B) == 0) * (SHARE_B - 1)"
// K_OF_A = "1 + ((BM + 63) // 64 % SHARE_A > 0) * (SHARE_A - 1)"  # parts of 64 of k: as in 23
// K_OF_B = "1 + ((BN + 63) // 64 % SHARE_B > 0) * (SHARE_B - 1)"
//
// [tensormaps]
// A = {swizzle = "2 * WIDE_A", promotion = "256 - 128 * TRANSA", box = ["(1 - TRANSA) * BM // OF_A + TRANSA * 64 // K_OF_A", "WIDE_A"]}
// B = {swizzle = "2 * WIDE_B", promotion = "128 + 128 * TRANSB", box = ["TRANSB * BN // OF_B + (1 - TRANSB) * 64 // K_OF_B", "WIDE_B"]}
//
// [params]
// BM = [128, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 144, 160, 192]
// BN = [64, 8, 16, 24, 32, 40, 48, 56, 80, 96, 112, 128, 144, 160, 192]
// STAGES = [8, 0]
// SHARE = [1, 0]
// CLUSTER = [1, 2, 4]
// ALONG_N = [0, 1, 2]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#include "dependent_launch.cuh"
#include "grid_sync.cuh"
#include "stage16.cuh"
#include "wgmma.cuh"

#ifndef ELEMENT
#define ELEMENT Bf16
#endif
#include "epilogue.cuh"

#define BK 64          // 128 bytes: as wide as the swizzle
#define CONSUMERS (2 * BP)  // threads: a warpgroup for 64 rows; the producers follow them
#define PRODUCERS 128  // one would do, but all of them copy a matrix that cannot have a tensor map
#define LEAST 4        // stages of a block

// The sides of a tile: Q, the thin one; and P, of 128 or, where neither has as much, of 64. Of two such sides P is that
// along N.
#define BP (BM == 128 || BN == 128 ? 128 : 64)
#define ACROSS (BN == BP)
#define BQ (ACROSS ? BM : BN)
#define QUADS (BQ / 8)  // of a thread's sums, each two of Q at two places of P
#define SHARE_B (ALONG_N ? ALONG_N : CLUSTER)  // blocks of a cluster one above the other, with the same columns of B
#define SHARE_A (CLUSTER / SHARE_B)            // and side by side, with the same rows of A
#define SHARE_P (ACROSS ? SHARE_B : SHARE_A)
#define SHARE_Q (ACROSS ? SHARE_A : SHARE_B)
// Those that it adds up at once, of IN_FLIGHT / AT_ONCE blocks. Half as many of a large tile across, which would spill.
#define LARGE (ACROSS && BQ >= 128)
#define IN_FLIGHT (LARGE ? 8 : 16)
#define AT_ONCE (LARGE ? (QUADS % 4 ? 3 : 4) : QUADS < 8 ? QUADS : QUADS % 8 ? QUADS / 2 : 8)

typedef Stage16<ELEMENT, BP, BQ, BK, (ACROSS ? !TRANSB : TRANSA), (ACROSS ? TRANSA : !TRANSB), BQ <= 32 ? 32 : 64,
                true> Stage;
constexpr int DEEP = STAGES ? STAGES : 1792 * 128 / sizeof(Stage);  // stages

// The line of `total` stages, cut into pieces for `clusters` clusters. The first `longer` have one stage more.
struct Line {
    unsigned each, longer;
    __device__ Line(unsigned total, unsigned clusters) : each(total / clusters), longer(total % clusters) {}
    __device__ unsigned begin(unsigned cluster) const { return cluster * each + min(cluster, longer); }
    __device__ unsigned cluster_of(unsigned stage) const
    {
        const unsigned in_longer = longer * (each + 1);
        return stage < in_longer ? stage / (each + 1) : longer + (stage - in_longer) / each;
    }
};

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

    const Side<ELEMENT> a = {&map_a, A, lda, M, aligned16(A, lda)}, b = {&map_b, B, ldb, N, aligned16(B, ldb)};
    const Side<ELEMENT> p = ACROSS ? b : a, q = ACROSS ? a : b;
    const bool maps = p.mapped && q.mapped;

    // A unit is a stage, or a whole tile, of all blocks of a cluster. Those beside each other have the same of P.
    const int rank = blockIdx.x % CLUSTER;
    const unsigned cluster = blockIdx.x / CLUSTER, most = gridDim.x / CLUSTER;
    const unsigned tiles_q = (q.extent + BQ * SHARE_P - 1u) / (BQ * SHARE_P);
    const unsigned tiles = (p.extent + BP * SHARE_Q - 1u) / (BP * SHARE_Q) * tiles_q;
    const unsigned stages_of_k = (K - 1) / BK + 1, unit = SHARE ? 1 : stages_of_k;
    const unsigned units = SHARE ? tiles * stages_of_k : tiles;
    const unsigned clusters = min(most, SHARE ? max(1u, units / LEAST) : units);
    if (cluster >= clusters) return;
    const Line line(units, clusters);
    const unsigned begin = line.begin(cluster) * unit, end = line.begin(cluster + 1) * unit;
    const auto p_of = [&](unsigned tile) { return (tile / tiles_q * SHARE_Q + rank % SHARE_Q) * BP; };
    const auto q_of = [&](unsigned tile) { return (tile % tiles_q * SHARE_P + rank / SHARE_Q) * BQ; };

    const int self = threadIdx.x, lane = self % 32, warp = __shfl_sync(~0u, self / 32, 0);  // uniform in a warp
    const auto load = [&](unsigned tile, unsigned k, int stage) {
        stages[stage].load<SHARE_Q, SHARE_P>(*p.map, *q.map, p_of(tile), q_of(tile), k, full + stage, p.mapped, q.mapped,
                                             rank);
    };
    const unsigned first_tile = begin / stages_of_k, first_k = begin % stages_of_k * BK;
    if (warp == CONSUMERS / 32 + 1 && !dependents_wait<CLUSTER>(clusters, most, ((long long)M + N) * K))
        launch_dependents();
    if (warp == CONSUMERS / 32 && elect_one()) {
        // A warpgroup arrives as one, in all blocks.
        init_stage_barriers<DEEP>(full, empty, maps ? 1 : 1 + PRODUCERS, CONSUMERS / 128 * CLUSTER, [&] {
            if (!maps) return;
            wait_for_prerequisites();  // the consumers wait for what comes after it
            stages[0].load_own<SHARE_Q, SHARE_P>(*p.map, *q.map, p_of(first_tile), q_of(first_tile), first_k, full);
        });
    }
    __syncwarp();
    if (CLUSTER > 1) cluster_sync_relaxed();
    else named_barrier_arrive_or_sync<CONSUMERS + PRODUCERS>(maps && self >= CONSUMERS);

    if (self >= CONSUMERS) {
        int stage = 0, parity = 1;  // all stages are empty: the first waits end at once
        if (maps && warp == CONSUMERS / 32 && elect_one()) {
            stages[0].load_rest<SHARE_Q, SHARE_P>(*p.map, *q.map, p_of(first_tile), q_of(first_tile), first_k, full, rank);
            ++stage;
            unsigned tile = first_tile, part = begin % stages_of_k;  // a division for each stage would take as long as its loads
            for (unsigned at = begin + 1; at < end; ++at) {
                if (++part == stages_of_k) part = 0, ++tile;
                mbarrier_wait(empty + stage, parity);  // what was there has been multiplied
                load(tile, part * BK, stage);
                if (++stage == DEEP) stage = 0, parity ^= 1;
            }
        }
        if (!maps) wait_for_prerequisites();
        if (!maps)  // in a loop of its own, as in 23
            for (unsigned at = begin; at < end; ++at) {
                const unsigned tile = at / stages_of_k, k = at % stages_of_k * BK;
                mbarrier_wait(empty + stage, parity);
                if (warp == CONSUMERS / 32 && elect_one()) load(tile, k, stage);
                stages[stage].copy(p.from, q.from, p_of(tile), q_of(tile), k, p.extent, q.extent, K, p.ld, q.ld,
                                   p.mapped, q.mapped);
                mbarrier_arrive(full + stage);
                if (++stage == DEEP) stage = 0, parity ^= 1;
            }
        if (CLUSTER > 1 && warp == CONSUMERS / 32 && elect_one()) producer_tail<DEEP>(empty, stage, parity);
        return;
    }

    // A block has two places for sums: of its first tile, if that began in another block, and of its last one.
    const auto parts = (float4(*)[2][QUADS * CONSUMERS])(workspace + 4 * gridDim.x);
    const bool pairs = (unsigned long long)C % sizeof(OUT[2]) == 0 && ldc % 2 == 0;
    int stage = 0, parity = 0;
    for (unsigned now = begin; now < end;) {
        const unsigned tile = now / stages_of_k, from = tile * stages_of_k, to = min(end, from + stages_of_k);
        float sum[BQ / 2];
        int last = 0;
        #pragma unroll 1
        for (unsigned first = now; now < to; ++now) {
            mbarrier_wait(full + stage, parity);
            stages[stage].multiply(sum, warp / 4 * 64, now > first);
            wgmma_wait_group<1>();  // the products of the last stage are done: it may be filled again
            if (now > first) consumer_release<CLUSTER>(empty + last, self, warp);
            last = stage;
            if (++stage == DEEP) stage = 0, parity ^= 1;
        }
        wgmma_wait_all(sum);
        if (now == end) launch_dependents();
        consumer_release<CLUSTER>(empty + last, self, warp);

        const unsigned place_p = p_of(tile) + 16 * warp + lane / 4, place_q = q_of(tile) + lane % 4 * 2;
        const Epilogue epilogue = MAKE_EPILOGUE(M, N, ldc);
        const auto store = [&](int j, float4 v) {
            store_fragment<ACROSS>(C, ldc, place_p, place_q + 8 * j, v, M, N, pairs, alpha, beta, epilogue);
        };
        const unsigned low = SHARE ? line.cluster_of(from) : 0, high = SHARE ? line.cluster_of(from + stages_of_k - 1) : 0;
        if (low == high) {
            #pragma unroll
            for (int j = 0; j < QUADS; ++j)
                store(j, make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]));
            continue;
        }
        const auto part_of = [&](unsigned cluster) { return parts[cluster * CLUSTER + rank][cluster == low]; };
        const auto own = part_of(cluster);
        #pragma unroll
        for (int j = 0; j < QUADS; ++j)
            __stcg(&own[j * CONSUMERS + self], make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]));
        if (last_of(high - low + 1, workspace + low * CLUSTER + rank, [] { named_barrier_sync<CONSUMERS>(); }))
            reduce_parts<CONSUMERS, AT_ONCE, IN_FLIGHT / AT_ONCE>(
                [&](unsigned cluster) { return (const float4*)part_of(cluster); }, low, high, self,
                QUADS * CONSUMERS, [&](unsigned i, float4 v) { store(i / CONSUMERS, v); });
    }
}
