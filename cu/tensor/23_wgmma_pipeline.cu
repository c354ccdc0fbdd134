// Clusters that share operands, and a first load as early as possible
//
// Two blocks whose tiles lie one above the other need the same columns of B, and two side by side (ALONG_N=1)
// the same rows of A. As a cluster (CLUSTER=2) they share them: each loads half, and TMA multicast writes it
// to the shared memory of both. So a stage is empty when the consumers of all blocks have released it, and a
// block must not exit before the others have. Four blocks (CLUSTER=4) lie in a line, or two by two (ALONG_N=2),
// where each loads half of its A and half of its B: the L2 cache is asked for half as much. Eight (CLUSTER=8) lie in a
// line, or two by four (ALONG_N=2 or 4).
//
// With BM=256 a warpgroup multiplies two times 64 rows: a tile of 256 x 160 asks the L2 cache for an eighth less a
// product than one of 128 x 256. STAGES=0 takes as many stages as fit.
//
// wgmma multiplies 64 rows at a time, but as many columns as one likes. If M is 667, three tiles of 224 rows fit better
// than six of 128: where BM is no multiple of 64, the product is computed from its other side, C^T = B^T A^T, as in 35.
// stmatrix turns the results back on their way to shared memory, and the four warps of a warpgroup fill a box of C. Any
// multiple of eight rows will do: 165 rows are one tile of 168.
//
// One thread asks for the boxes. Which one, the branch itself decides by elect.sync: the compiler then knows that a single
// thread is active, and TMA takes its operands from uniform registers without a loop over those of a warp.
//
// In short products half of the time passes before the first box arrives. So the tensor maps are prefetched,
// the first box is asked for as soon as its own barrier exists, and the producers do not wait for the rest of
// the block. For what was measured see docs/notes/23_wgmma_pipeline.md.
//
// Warpgroups that share a tile write its results at the same time, and nothing is multiplied meanwhile. With PINGPONG=1 each
// has a tile of its own (at most 128 x 192): one multiplies while the other one writes. The producers load tile after tile,
// and a warpgroup waits for the stages of every second one.
//
// /// kernel
// entry = "matmul"
// after = "22c_tma_store"
// dtype = ["bf16", "fp16"]
// aliases = {fp16 = "24_wgmma_fp16"}
// min_arch = "sm_90a"
// block = "CONSUMERS + 128"
// tile  = ["BM", "BN"]
// grid  = "max(CLUSTER, (CLUSTER < 4) * (SMS // CLUSTER * CLUSTER) + (CLUSTER == 4) * (10 * SMS // 44 * 4) + (CLUSTER == 8) * (10 * SMS // 88 * 8))"
// where = ["ALONG_N < CLUSTER", "CLUSTER % max(ALONG_N, 1) == 0", "BM % 8 == 0", "BM + BN <= 384 + 32 * (P == 256)", "HALVES * Q <= 320 + 64 * PINGPONG", "PINGPONG * P <= 192",
//          "ACROSS and BM < 256 and BN % 64 == 0 or BM % 64 == 0 and BN % 16 == 0", "1008 <= DEEP * (BM + BN)",
//          "DEEP * STAGE + BOXES <= MOST_SHARED"]
// shared = "DEEP * STAGE + BOXES * (1 + (Q > 64 and (HALVES == 1 or PINGPONG) and DEEP * STAGE + 2 * BOXES <= MOST_SHARED))"
// programmatic = 1
// loads = "BM + BN"
// sums  = "wgmma"
// sass  = ["HGMMA == 4 if HALVES == 1", "HGMMA in loop == 4 if HALVES == 1", "HGMMA == 8 if HALVES == 2", "HGMMA in loop == 8 if HALVES == 2",
//          "WARPGROUP.DEPBAR in loop == 1", "no BAR in loop", "UTMALDG", "STSM", "UTMASTG if Q >= 64 or ACROSS", "ACQBULK", "PREEXIT",
//          "no LDL in loop", "no STL in loop", "no LDL if PINGPONG * HALVES * Q < 320", "no STL if PINGPONG * HALVES * Q < 320",
//          # A loop over the operands of TMA: at its stores alone, at no load (see elect_one).
//          "BRA.U.ANY <= 4 if HALVES == 1 and Q % 16 == 0"]
// claim = "Nothing in the loop but four products, two mbarriers and the address of a stage."
// predict = ["seconds < 1 of 22_wgmma at N=4096"]
//
// [names]
// MOST_SHARED = 232448  # bytes a block may have
// ACROSS = "BM % 64 > 0"
// P = "(1 - ACROSS) * BM + ACROSS * BN"  # the side of which a warpgroup multiplies 64 at a time, and the other one
// Q = "(1 - ACROSS) * BN + ACROSS * BM"
// HALVES = "1 + (P == 256) + PINGPONG * (P // 64 - 1)"  # 64 of P each, of a warpgroup
// CONSUMERS = "(1 - PINGPONG) * (2 * P - 256 * (P == 256)) + 256 * PINGPONG"
// BOXES = "64 * CONSUMERS"  # bytes: a box of C of each warp. There are two if a tile has so many and they fit
// STAGE = "128 * (BM + TRANSA * (-BM % 64) + BN + (1 - TRANSB) * (-BN % 64)) + 16"
// DEEP = "STAGES + (STAGES == 0) * ((MOST_SHARED - BOXES) // STAGE)"  # 0: as many as fit
// SHARE_B = "max(ALONG_N, (ALONG_N == 0) * CLUSTER)"
// SHARE_A = "CLUSTER // SHARE_B"
// OF_A = "1 + (BM % (8 * SHARE_A) == 0) * (SHARE_A - 1)"  # parts of a K-major tile: one where its rows cannot be divided
// OF_B = "1 + (BN % (8 * SHARE_B) == 0) * (SHARE_B - 1)"
// K_OF_A = "1 + ((BM + 63) // 64 % SHARE_A > 0) * (SHARE_A - 1)"  # and of 64 of k: where the blocks cannot have as many whole boxes each
// K_OF_B = "1 + ((BN + 63) // 64 % SHARE_B > 0) * (SHARE_B - 1)"
//
// [tensormaps]
// A = {promotion = "256 - 128 * TRANSA", box = ["(1 - TRANSA) * BM // OF_A + TRANSA * 64 // K_OF_A", 64], swizzle = 128}
// B = {promotion = "128 + 128 * TRANSB", box = ["TRANSB * BN // OF_B + (1 - TRANSB) * 64 // K_OF_B", 64], swizzle = 128}
// C = {box = ["16 - BM % 16", 64], swizzle = 128}
//
// [params]
// BM = [128, 64, 192, 256, 40, 48, 56, 72, 80, 88, 96, 104, 112, 120, 136, 144, 152, 160, 168, 176, 184, 200, 208, 216,
//       224, 232, 240, 248, 16, 24, 32]
// BN = [256, 128, 192, 64, 96, 160, 224, 80, 112, 144, 176, 208, 240, 32, 48]
// STAGES = [4, 0, 8]
// PINGPONG = [0, 1]
// CLUSTER = [1, 2, 4, 8]
// ALONG_N = [0, 1, 2, 4]
// GROUP = [8, 1, 2, 4]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#include "batch.cuh"
#include "dependent_launch.cuh"
#include "raster.cuh"
#include "stage16.cuh"
#include "wgmma.cuh"

#ifndef ELEMENT
#define ELEMENT Bf16
#endif
#include "epilogue.cuh"

#define BK 64               // 128 bytes: as wide as the swizzle
// The sides of a tile: P, of which a warpgroup multiplies 64 at a time, and Q.
#define ACROSS (BM % 64 > 0)
#define BP (ACROSS ? BN : BM)
#define BQ (ACROSS ? BM : BN)
#define HALVES (PINGPONG ? BP / 64 : BP == 256 ? 2 : 1)  // 64 of P each, of a warpgroup
#define CONSUMERS (PINGPONG ? 256 : 2 * BP / HALVES)    // threads; the producers follow them
#define SUMS (HALVES * BQ / 2)         // of a thread
#define PRODUCERS 128       // one would do, but all of them copy a matrix that cannot have a tensor map
#define HALF (BQ % 16)       // rows of the last box where that is no whole one; TMA stores all boxes as halves then
#define SHARE_B (ALONG_N ? ALONG_N : CLUSTER)  // blocks of a cluster one above the other, with the same columns of B
#define SHARE_A (CLUSTER / SHARE_B)            // and side by side, with the same rows of A
#define SHARE_P (ACROSS ? SHARE_B : SHARE_A)
#define SHARE_Q (ACROSS ? SHARE_A : SHARE_B)
#define ROWS (BM * BN >= 192 * 192 ? 1 : 4)  // under way where TMA cannot store: sums of such a tile leave few registers

typedef Stage16<ELEMENT, BP, BQ, BK, (ACROSS ? !TRANSB : TRANSA), (ACROSS ? TRANSA : !TRANSB), 64, true> Stage;
constexpr int MOST_SHARED = 232448, OF_STAGE = sizeof(Stage) + 2 * sizeof(Mbarrier), OF_BOXES = 64 * CONSUMERS;  // bytes
constexpr int DEEP = STAGES ? STAGES : (MOST_SHARED - OF_BOXES) / OF_STAGE;  // stages
constexpr int BOXES = BQ > 64 && (HALVES == 1 || PINGPONG) && DEEP * OF_STAGE + 2 * OF_BOXES <= MOST_SHARED ? 2 : 1;  // of a warp

#if CLUSTER > 1
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(CONSUMERS + PRODUCERS, 1)
#else
extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 1)
#endif
                       matmul(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                              const __grid_constant__ TensorMap map_c,
                              const ELEMENT* A, const ELEMENT* B, OUT* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER BATCH_PARAMETERS)
{
    if (threadIdx.x == CONSUMERS) prefetch_tensormap(map_a), prefetch_tensormap(map_b);
    extern __shared__ __align__(1024) unsigned char memory[];
    const auto stages = (Stage*)memory;
    const auto Cs = (ELEMENT(*)[BOXES][16][64])(stages + DEEP);  // of each warp
    auto full = (Mbarrier*)(Cs + CONSUMERS / 32), empty = full + DEEP;

    // The blocks of a cluster take tiles along P first, then along Q: one above the other first, then side by side.
    const int rank = blockIdx.x % CLUSTER;
    const unsigned first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
    const unsigned tiles_m = (M + BM * SHARE_B - 1u) / (BM * SHARE_B);
    const unsigned tiles_n = (N + BN * SHARE_A - 1u) / (BN * SHARE_A);
    const unsigned tiles = tiles_m * tiles_n * MATRICES;
    struct Place { unsigned p, q, matrix; };
    const auto place_of = [&](unsigned tile) {
        const auto [matrix, own] = tile_of_batch(tile, tiles_m * tiles_n);
        const auto [row, col] = grouped_raster(own, tiles_m, tiles_n, GROUP);
        const unsigned p = ACROSS ? col : row, q = ACROSS ? row : col;
        return Place{(p * SHARE_Q + rank % SHARE_Q) * BP, (q * SHARE_P + rank / SHARE_Q) * BQ, matrix};
    };
    if (first >= tiles) return;  // more SMs than tiles

    const int self = threadIdx.x, lane = self % 32, warp = __shfl_sync(~0u, self / 32, 0);  // uniform in a warp
    const bool map_for_a = aligned16(A, lda) && ON_UNITS(stride_a, sizeof(ELEMENT));
    const bool map_for_b = aligned16(B, ldb) && ON_UNITS(stride_b, sizeof(ELEMENT));
    const Side<ELEMENT> a = {&map_a, A, lda, M, map_for_a}, b = {&map_b, B, ldb, N, map_for_b};
    const Side<ELEMENT> p = ACROSS ? b : a, q = ACROSS ? a : b;
    const bool maps = p.mapped && q.mapped;
    const auto map_of_p = [&](unsigned matrix) -> decltype(auto) {
        return MATRIX_MAP(*p.map, matrix, ACROSS ? stride_b : stride_a, sizeof(ELEMENT));
    };
    const auto map_of_q = [&](unsigned matrix) -> decltype(auto) {
        return MATRIX_MAP(*q.map, matrix, ACROSS ? stride_a : stride_b, sizeof(ELEMENT));
    };
    Place place = {};
    // Not the warp that loads: it is in a hurry.
    if (warp == CONSUMERS / 32 + 1 && !dependents_wait<CLUSTER>(tiles, step, ((long long)M + N) * K * MATRICES))
        launch_dependents();
    if (warp == CONSUMERS / 32 && elect_one()) {
        place = place_of(first);  // now: its divisions take as long as the barriers
        // A warpgroup arrives as one, in all blocks.
        init_stage_barriers<DEEP>(full, empty, maps ? 1 : 1 + PRODUCERS, (PINGPONG ? 1 : CONSUMERS / 128) * CLUSTER, [&] {
            if (!maps) return;
            wait_for_prerequisites();  // the consumers wait for what comes after it
            stages[0].load_own<SHARE_Q, SHARE_P>(map_of_p(place.matrix), map_of_q(place.matrix), place.p, place.q, 0, full);
        });
    }
    __syncwarp();
    if (CLUSTER > 1) cluster_sync_relaxed();
    else named_barrier_arrive_or_sync<CONSUMERS + PRODUCERS>(maps && self >= CONSUMERS);

    if (self >= CONSUMERS) {
        // Loading needs few registers,
        if (CONSUMERS > 128) setmaxnreg_dec<(CONSUMERS == 384 ? 80 : SUMS <= 128 ? 104 : SUMS <= 160 ? 88 : 56)>();
        int stage = 0, parity = 1;  // all stages are empty: the first waits end at once
        if (maps && warp == CONSUMERS / 32 && elect_one()) {
            stages[0].load_rest<SHARE_Q, SHARE_P>(map_of_p(place.matrix), map_of_q(place.matrix), place.p, place.q, 0, full,
                                                  rank);
            ++stage;
            for (unsigned tile = first; tile < tiles; tile += step) {
                if (tile > first) place = place_of(tile);
                for (int left = tile > first ? K : K - BK; left > 0; left -= BK) {
                    mbarrier_wait(empty + stage, parity);  // what was there has been multiplied, in all blocks
                    stages[stage].load<SHARE_Q, SHARE_P>(map_of_p(place.matrix), map_of_q(place.matrix), place.p, place.q,
                                                         K - left, full + stage, true, true, rank);
                    if (++stage == DEEP) stage = 0, parity ^= 1;
                }
            }
        }
        if (!maps) wait_for_prerequisites();
        if (!maps)  // in a loop of its own, whose preparations would delay the first box above
            for (unsigned tile = first; tile < tiles; tile += step) {
                const auto [at_p, at_q, matrix] = place_of(tile);
                const ELEMENT* from_p = p.from + TO_MATRIX(matrix, ACROSS ? stride_b : stride_a);
                const ELEMENT* from_q = q.from + TO_MATRIX(matrix, ACROSS ? stride_a : stride_b);
                for (int left = K; left > 0; left -= BK) {
                    const int k = K - left;
                    mbarrier_wait(empty + stage, parity);
                    if (warp == CONSUMERS / 32 && elect_one())
                        stages[stage].load<SHARE_Q, SHARE_P>(map_of_p(matrix), map_of_q(matrix), at_p, at_q, k, full + stage,
                                                             p.mapped, q.mapped, rank);
                    stages[stage].copy(from_p, from_q, at_p, at_q, k, p.extent, q.extent, K, p.ld, q.ld, p.mapped, q.mapped);
                    mbarrier_arrive(full + stage);
                    if (++stage == DEEP) stage = 0, parity ^= 1;
                }
            }
        if (CLUSTER > 1 && warp == CONSUMERS / 32 && elect_one()) producer_tail<DEEP>(empty, stage, parity);
        return;
    }

    // so the consumers take over the rest.
    if (CONSUMERS > 128) setmaxnreg_inc<(CONSUMERS == 384 ? 144 : SUMS <= 128 ? 200 : SUMS <= 160 ? 208 : 224)>();
    // TMA writes 16 bytes or none of them: at a ragged edge it would write past the end of a row.
    const bool boxes = beta == 0.f && !FLOAT_C;  // results go through shared memory
    const bool map_for_c = aligned16(C, ldc) && ON_UNITS(stride_c, sizeof(ELEMENT)) && N % 8 == 0 && boxes;
    const bool pairs = (unsigned long long)(C + TO_MATRIX(1, stride_c)) % sizeof(OUT[2]) == 0
                       && (unsigned long long)C % sizeof(OUT[2]) == 0 && ldc % 2 == 0;
    float sums[HALVES][BQ / 2];
    int stage = 0, parity = 0;
    const auto leave_out_a_tile = [&] {  // the other warpgroup's
        const int next = stage + (K + BK - 1) / BK;
        stage = next % DEEP, parity ^= next / DEEP % 2;
    };
    const int turn = PINGPONG ? warp / 4 : 0, part = PINGPONG ? 0 : warp / 4;  // every second tile, or a part of each
    if (turn) leave_out_a_tile();
    for (unsigned tile = first + turn * step; tile < tiles; tile += (1 + PINGPONG) * step) {
        const Place place = place_of(tile);
        int last = 0;
        // Only with the other one's stages behind it does the parity of a stage tell which time it is filled.
        if (PINGPONG && tile > first) wait_for_turn(turn);
        #pragma unroll 1
        for (int left = K; left > 0; left -= BK) {
            mbarrier_wait(full + stage, parity);
            stages[stage].multiply(sums, part * (64 * HALVES), left < K);
            wgmma_wait_group<1>();  // the products of the last stage are done: it may be filled again
            if (left < K) consumer_release<CLUSTER>(empty + last, self, warp);
            last = stage;
            if (++stage == DEEP) stage = 0, parity ^= 1;
        }
        if (PINGPONG && tile + step < tiles) give_turn_to(1 - turn);
        wgmma_wait_all(sums);
        consumer_release<CLUSTER>(empty + last, self, warp);
        if (PINGPONG) leave_out_a_tile();

        OUT* const own_c = C + TO_MATRIX(place.matrix, stride_c);
        // A box of 16 rows and 64 columns, or as many of its rows.
        const auto store_box = [&](unsigned row, unsigned col, const ELEMENT (*box)[64], int rows = 16) {
            #pragma unroll
            for (int m = 0; m < rows; m += HALF ? HALF : 16)
                tma_store(MATRIX_MAP(map_c, place.matrix, stride_c, sizeof(ELEMENT)), row + m, col, box[m]);
        };
        // What TMA cannot write: row by row, up to column `end`.
        const auto store_rows = [&](unsigned row, unsigned col, unsigned end, const ELEMENT (*box)[64], int rows = 16) {
            const unsigned s = col + 2 * lane;
            ELEMENT* c = (ELEMENT*)own_c + (long long)row * ldc + s;
            #pragma unroll ROWS
            for (int m = 0; m < rows && row + m < M; ++m, c += ldc) {
                const auto at = (const unsigned*)&box[m][(lane / 4 ^ m % 8) * 8 + lane % 4 * 2];
                const unsigned word = BQ % 64 == 0 || ACROSS || s < end ? *at : 0;  // half a box: nothing was written behind
                if ((unsigned long long)c % 4 == 0) {
                    if (s + 1 < end) *(unsigned*)c = word;
                    else if (s < end) c[0].bits = word;
                } else {  // the words of memory have an element of this lane and one of the lane before
                    const unsigned before = __shfl_up_sync(~0u, word, 1);
                    if (s + 1 < end && (lane == 31 || s + 2 >= end)) c[1].bits = word >> 16;
                    if (s < end && lane == 0) c[0].bits = word;
                    if (s < end && lane > 0) *(unsigned*)(c - 1) = before >> 16 | word << 16;
                }
            }
        };
        #pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            auto& sum = sums[half];
            // The first of P and of Q that the warp has sums of: 16 of P, all of the tile's Q.
            const unsigned group_p = place.p + (part * HALVES + half) * 64, own_p = group_p + warp % 4 * 16;
            const unsigned own_q = place.q;
            if (alpha != 1.f)
                #pragma unroll
                for (int i = 0; i < BQ / 2; ++i) sum[i] *= alpha;
            const Epilogue epilogue = MAKE_EPILOGUE_FROM(TO_MATRIX(place.matrix, stride_c), M, N, ldc);
            if (EPILOGUE && boxes)
                #pragma unroll
                for (int i = 0; i < BQ / 2; ++i) {
                    const unsigned at_p = own_p + i / 2 % 2 * 8 + lane / 4, at_q = own_q + i / 4 * 8 + lane % 4 * 2 + i % 2;
                    sum[i] = epilogue(sum[i], ACROSS ? at_q : at_p, ACROSS ? at_p : at_q);
                }
            if (!boxes) {
                #pragma unroll
                for (int i = 0; i < BQ / 2; i += 4)
                    store_fragment<ACROSS>(own_c, ldc, own_p + lane / 4, own_q + i * 2 + lane % 4 * 2,
                                           make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]), M, N, pairs, 1.f, beta,
                                           epilogue);
                continue;
            }
            const auto word = [&](int i) { return pack<ELEMENT>(sum[i], sum[i + 1]); };
            if constexpr (ACROSS) {
                // Rows of C lie along Q. A box has 64 columns, 16 of each warp; as many as there is room for are written at once.
                const auto own = Cs + warp / 4 * 4;
                #pragma unroll
                for (int begin = 0; begin < (BQ + 15) / 16; begin += 4 * BOXES) {
                    if (lane == 0) tma_store_wait_group_read<0>();  // what was there, of this warp's stores;
                    warpgroup_sync(warp / 4);                       // and of the others'
                    #pragma unroll
                    for (int box = 0; box < 4 * BOXES && begin + box < (BQ + 15) / 16; ++box) {
                        const int r = lane % 8 + lane / 16 * 8, unit = warp % 4 * 2 + lane / 8 % 2, i = 8 * (begin + box);
                        const auto at = &own[box / BOXES][box % BOXES][r][(unit ^ r % 8) * 8];
                        if (i + 4 < BQ / 2) stmatrix_x4_trans(at, word(i), word(i + 2), word(i + 4), word(i + 6));
                        else stmatrix_x2_trans(at, word(i), word(i + 2));
                    }
                    if (map_for_c) fence_proxy_async();
                    warpgroup_sync(warp / 4);
                    #pragma unroll
                    for (int j = 0; j < BOXES; ++j) {
                        const int box = begin + warp % 4 * BOXES + j;
                        if (box >= (BQ + 15) / 16) continue;
                        const unsigned row = own_q + 16 * box;
                        const int rows = HALF ? min(16, BQ - 16 * box) : 16;
                        if (!map_for_c) store_rows(row, group_p, N, Cs[warp][j], rows);
                        else if (lane == 0) store_box(row, group_p, Cs[warp][j], rows);
                    }
                    if (map_for_c && lane == 0) tma_store_commit_group();
                }
                continue;
            }
            const auto write_box = [&](int j) {  // up to 64 columns of the warp's rows, to shared memory
                const int r = lane % 16, unit = lane / 16;
                #pragma unroll
                for (int i = 32 * j; i < 32 * j + 32 && i < BQ / 2; i += 8)  // 16 columns
                    stmatrix_x4(&Cs[warp][j % BOXES][r][((i / 4 + unit) % 8 ^ r % 8) * 8], word(i), word(i + 2), word(i + 4),
                                word(i + 6));
            };
            if (map_for_c) {
                if (BQ % 64) {  // less than a box is left over: the warp stores it first, for its place is mostly free by now
                    constexpr int UNITS = BQ % 64 / 8, LAST = BQ / 64;  // of 16 bytes in a row
                    if (lane == 0) tma_store_wait_group_read<0>();
                    __syncwarp();
                    write_box(LAST);
                    __syncwarp();
                    #pragma unroll 1
                    for (int i = lane; i < 16 * UNITS; i += 32) {
                        const int r = i % 16, unit = i / 16;  // eight lanes read from eight rows: no bank conflict
                        const unsigned row = own_p + r, col = own_q + 64 * LAST + 8 * unit;
                        if (row < M && col < N)
                            *(uint4*)((ELEMENT*)own_c + (long long)row * ldc + col) =
                                *(const uint4*)&Cs[warp][LAST % BOXES][r][(unit ^ r % 8) * 8];
                    }
                }
                #pragma unroll
                for (int j = 0; j < BQ / 64; ++j) {  // a box is on its way while the next one is written
                    const auto cs = Cs[warp][j % BOXES];
                    if (lane == 0 && j == 0) tma_store_wait_group_read<0>();  // the last tile's boxes, long ago
                    if (lane == 0 && j >= BOXES) tma_store_wait_group_read<BOXES - 1>();  // what was in this one
                    __syncwarp();
                    write_box(j);
                    fence_proxy_async();
                    __syncwarp();
                    if (lane == 0) {
                        store_box(own_p, own_q + 64 * j, cs);
                        tma_store_commit_group();
                    }
                }
                continue;
            }
            #pragma unroll
            for (int j = 0; j < (BQ + 63) / 64; ++j) {  // through shared memory too
                write_box(j);
                __syncwarp();
                store_rows(own_p, own_q + 64 * j, BQ % 64 ? min((unsigned)N, own_q + BQ) : N, Cs[warp][j % BOXES]);
                __syncwarp();  // read, before the next box is written
            }
        }
    }
    launch_dependents();
    if (lane == 0) tma_store_wait_group_read<0>();  // shared memory must outlive the stores
}
