// wgmma on floats, rounded to tf32, without transposing B
//
// From shared memory the tensor cores read 32-bit operands only if they are K-major, that is with k along the
// rows. A is; a row-major B is not, and a transposed copy would cost a pass over B. But the first operand of
// wgmma may come from registers, which threads can load in any order. So this computes C^T = B^T A^T, with B
// in registers and A in shared memory. The pipeline is that of 23. TMA rounds floats to nearest tf32; the
// tensor cores would truncate them.
//
// A B that is stored transposed (TRANSB=1), as the weights of a linear layer are, has k along its rows: then
// both operands stay in shared memory.
//
// With TRANSA=1 and TRANSB=1 it is A that has k across its rows, and C = A B is computed as it stands, with A in
// registers and B in shared memory: what is called A in the text is then B, and C is stored from the other side. A
// transposed A beside a row-major B has both the wrong way round; one of them must be copied.
//
// Floats are twice as many bytes as the elements of 23 for half as many products: tiles of 256 x 128 ask the L2 cache for
// what it can just give. So blocks of a cluster share rows of A (side by side, ALONG_N=1), columns of B, or two by
// two both (CLUSTER=4, ALONG_N=2), as in 23. A and B are those of the text here. Where C has a tile's columns or fewer, each
// tile reads all of B, which is as much as its own rows of A: there four or eight lie one above the other (ALONG_N=0).
//
// SPLIT blocks of a cluster share a tile, each with a part of k. Where tiles are few and k is deep, eight are too few for
// tiles as large as the L2 cache wants them: with SHARE=1 as many clusters share a tile as there is room for. The blocks
// that have the same piece of its sums store it, and the one that comes last adds them up, always in the same order.
//
// With PINGPONG=1 each warpgroup has a tile of its own, of 64 or two times 64 columns of B, as in 23: one multiplies while
// the other one writes.
//
// /// kernel
// entry = "matmul"
// after = "23_wgmma_pipeline"
// dtype = "tf32"
// min_arch = "sm_90a"
// block = "CONSUMERS + 128"
// tile  = ["BM + TRANSA * (BN - BM)", "BN + TRANSA * (BM - BN)"]
// grid  = """(SPLIT == 1) * max(CLUSTER, (CLUSTER < 4) * BLOCKS * SMS // CLUSTER * CLUSTER + (CLUSTER > 2) * (10 * SMS // (11 * CLUSTER) * CLUSTER)) \
//            + (SPLIT > 1) * SPLIT * TILES * max(1, SHARE * min(K // (128 * SPLIT), ROOM // TILES))"""
// where = ["BM <= (2 + 2 * PINGPONG) * BN", "HALVES * BM <= 320", "1024 <= BLOCKS * STAGES * (BM + BN) <= 1536", "BM * SPLIT <= 512 << SHARE", "SHARE < SPLIT",
//          "BLOCKS == 1 or SPLIT == 1 and BN == 64", "PINGPONG * BLOCKS * SPLIT < 2", "BM % (8 * SPLIT) == 0", "TRANSA <= TRANSB",
//          "CLUSTER == 1 or BLOCKS * SPLIT == 1", "ALONG_N < CLUSTER", "CLUSTER < 8 or ALONG_N == 0"]
// shared = "128 * STAGES * (BM + BN) + 128 * CONSUMERS + 16 * STAGES"
// workspace = "(GRID_X > SPLIT * TILES) * SHARE * (4096 + GRID_X * (4 * BM * BN // SPLIT))"
// programmatic = 1
// loads = "BM + BN"
// sums  = "wgmma"
// parts = "(SHARE == 0) * SPLIT"
// sass  = ["HGMMA in loop == 8", "LDS.64 in loop == 16 if TRANSA == TRANSB", "no LDS in loop if TRANSA < TRANSB",
//          "WARPGROUP.DEPBAR in loop == 2", "no BAR in loop", "USETMAXREG", "UTMALDG", "no BRA.U.ANY", "ACQBULK", "PREEXIT",
//          "no LDL in loop", "no STL in loop", "no LDL if HALVES == 1 and (CLUSTER + SHARE * TRANSA == 1 or BM < 256 and CLUSTER < 4 + 8 * ALONG_N)",
//          "no STL if HALVES == 1 and (CLUSTER + SHARE * TRANSA == 1 or BM < 256 and CLUSTER < 4 + 8 * ALONG_N)"]
// claim = "Two shared loads a thread feed 64 x BM x 8 products, without a bank conflict."
// predict = ["conflicts == 0", "conflicts with TRANSA=1 TRANSB=1 == 0 at N=256 transa=1 transb=1",
//            "seconds < 1 of cuBLAS at N=2048"]
//
// [names]
// HALVES = "1 + PINGPONG * (BN // 64 - 1)"  # 64 columns of B each, of a warpgroup
// CONSUMERS = "(1 - PINGPONG) * 2 * BN + PINGPONG * 256"
// SHARE_B = "max(ALONG_N, (ALONG_N == 0) * CLUSTER)"
// SHARE_A = "CLUSTER // SHARE_B"
// TILES = "TILES_X * TILES_Y * TILES_Z"
// ROOM = "(SPLIT == 2) * (SMS // 2) + (SPLIT > 2) * (10 * SMS // (11 * SPLIT))"  # for clusters of SPLIT blocks
//
// [tensormaps]
// A = {promotion = "256 - 128 * TRANSA", box = ["(1 - TRANSA) * BM // SHARE_A + TRANSA * min(32, BN // SHARE_B)", 32], swizzle = 128}
// B = {promotion = "128 + 128 * TRANSB", box = ["(1 - TRANSB) * min(32, BN // SHARE_B) + TRANSB * (1 - TRANSA) * BN // SHARE_B + TRANSA * BM // SHARE_A", 32], swizzle = 128}
// C = {box = [32, 32], swizzle = 128}
//
// [params]
// BM = [256, 128, 64, 32, 96, 160, 192, 224]
// BN = [128, 64]
// STAGES = [4, 6, 8, 5]
// BLOCKS = [1, 2]
// PINGPONG = [0, 1]
// SPLIT = [1, 2, 4, 8]
// SHARE = [0, 1]
// CLUSTER = [1, 2, 4, 8]
// ALONG_N = [0, 1, 2]
// GROUP = [8, 1]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#include "batch.cuh"
#include "cluster.cuh"
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "grid_sync.cuh"
#include "vector.cuh"
#include "raster.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

#define BK 32                // 128 bytes of a row of A
#define STRIDE_A (TRANSA ? stride_b : stride_a)  // of a batch
#define STRIDE_B (TRANSA ? stride_a : stride_b)
#define HALVES (PINGPONG ? BN / 64 : 1)  // 64 columns of B each, of a warpgroup
#define CONSUMERS (PINGPONG ? 256 : 2 * BN)  // threads; the producers follow them
#define PRODUCERS 128
#define PRODUCER_REGISTERS (HALVES * BM > 256 ? 56 : 88)
#define CONSUMER_REGISTERS (CONSUMERS == 128 ? 168 : HALVES * BM > 256 ? 224 : 208)  // together as many as the block starts with
#define COLUMNS (TRANSA ? BM : BN)       // of a tile of C
#define BOXES (HALVES * BM / 32)         // of C, of two warps
#define BOTH_SHARED (TRANSB && !TRANSA)  // no operand is in registers
#define SHARE_B (ALONG_N ? ALONG_N : CLUSTER)  // blocks of a cluster one above the other, with the same columns of B
#define SHARE_A (CLUSTER / SHARE_B)            // and side by side, with the same rows of A
#define ROWS_A (BM / SHARE_A)                  // of a stage of A, that a block loads
#define COLUMNS_B (BN / SHARE_B)

#if SPLIT * CLUSTER > 1
extern "C" __global__ void __cluster_dims__(SPLIT * CLUSTER, 1, 1)
#else
extern "C" __global__ void
#endif
                       __launch_bounds__(CONSUMERS + PRODUCERS, CONSUMERS == 128 ? 2 : 1)
#if TRANSA  // what is called A from here on is B, and has N rows
                       matmul(const __grid_constant__ TensorMap map_b,
                              const __grid_constant__ TensorMap map_a,
                              const __grid_constant__ TensorMap map_c,
                              const float* B, const float* A, float* C, int N, int M, int K,
                              int ldb, int lda, int ldc, float alpha, float beta EPILOGUE_PARAMETER BATCH_PARAMETERS,
                              unsigned* workspace)
#else
                       matmul(const __grid_constant__ TensorMap map_a,
                              const __grid_constant__ TensorMap map_b,
                              const __grid_constant__ TensorMap map_c,
                              const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER BATCH_PARAMETERS,
                              unsigned* workspace)
#endif
{
    extern __shared__ __align__(1024) float memory[];
    auto As = (float(*)[BM][BK])memory;
    auto Bs = (float(*)[BN / 32][BK][32])(As + STAGES);  // boxes of 32 columns; or BN rows of a transposed B
    auto Cs = (float(*)[2][32][32])(Bs + STAGES);        // two boxes of two warps
    auto full = (Mbarrier*)(Cs + CONSUMERS / 64), empty = full + STAGES;

    // The blocks of a cluster take tiles one above the other first, then side by side. With SPLIT they have the same tile.
    const int place = blockIdx.x % CLUSTER, place_a = sharer<SHARE_A, SHARE_B>(place), place_b = sharer<SHARE_B, 1>(place);
    const unsigned tiles_m = (M + BM * SHARE_B - 1u) / (BM * SHARE_B), tiles_n = (N + BN * SHARE_A - 1u) / (BN * SHARE_A);
    const unsigned tiles = tiles_m * tiles_n * MATRICES;
    struct Corner {
        int row, col;
        unsigned matrix;
    };
    const auto corner_of = [&](unsigned tile) {
        const auto [matrix, own] = tile_of_batch(tile, tiles_m * tiles_n);
        const auto [row, col] = grouped_raster(own, tiles_m, tiles_n, GROUP);
        return Corner{int((row * SHARE_B + place_b) * BM), int((col * SHARE_A + place_a) * BN), matrix};
    };
    const unsigned at_once = gridDim.x / (SPLIT * CLUSTER), sharers = SHARE ? at_once / tiles : 1;  // clusters of a tile
    const unsigned first_tile = blockIdx.x / (SPLIT * CLUSTER * sharers);
    if (first_tile >= tiles) return;  // more SMs than tiles

    // With several blocks for a tile: the part of k that this block takes, in stages; maybe none.
    const int rank = blockIdx.x % SPLIT, stages_of_k = (K - 1) / BK + 1;
    const unsigned part_of_k = blockIdx.x % (SPLIT * sharers);
    const int begin = (long long)stages_of_k * part_of_k / (SPLIT * sharers);
    const int end = (long long)stages_of_k * (part_of_k + 1) / (SPLIT * sharers);

    const int self = threadIdx.x, lane = self % 32;
    const int warp = __shfl_sync(~0u, self / 32, 0);  // uniform in a warp
    const bool a_mapped = aligned16(A, lda) && ON_UNITS(STRIDE_A, sizeof(float));
    const bool b_mapped = aligned16(B, ldb) && ON_UNITS(STRIDE_B, sizeof(float)), maps = a_mapped && b_mapped;
    Corner corner = {};
    // With SPLIT, but without SHARE, the grid has as many blocks as have work. Elements have 32 bits.
    const unsigned places = SPLIT == 1 ? at_once : clusters_with_room<SPLIT>();
    if (warp == CONSUMERS / 32 + 1
        && (SHARE || !dependents_wait<CLUSTER * SPLIT>(tiles, places, 2 * ((long long)M + N) * K * MATRICES)))
        launch_dependents();
    if (warp == CONSUMERS / 32 && elect_one()) {
        prefetch_tensormap(map_a), prefetch_tensormap(map_b);
        corner = corner_of(first_tile);  // now: its divisions take as long as the barriers
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(full + stage, maps ? 1 : 1 + 32);  // all threads of the warp that copies
            mbarrier_init(empty + stage, (PINGPONG ? 4 : CONSUMERS / 32) * CLUSTER);  // a warp arrives as one, in all blocks
        }
        fence_mbarrier_init();
    }
    if (CLUSTER > 1) __syncwarp(), cluster_sync_relaxed();
    else named_barrier_arrive_or_sync<CONSUMERS + PRODUCERS>(maps && warp >= CONSUMERS / 32);

    if (warp >= CONSUMERS / 32) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        const auto fetch = [&](int stage, Corner at, int k, bool a, bool b) {
            const auto& of_a = MATRIX_MAP(map_a, at.matrix, STRIDE_A, sizeof(float));
            const auto& of_b = MATRIX_MAP(map_b, at.matrix, STRIDE_B, sizeof(float));
            mbarrier_arrive_expect_tx(full + stage, 4 * BK * (a * BM + b * BN));
            // Its part, for all blocks of the cluster that have the same.
            const int own_a = ROWS_A * place_a, own_b = COLUMNS_B * place_b;
            if (a) tma_load_shared<SHARE_A, SHARE_B>(place, As[stage][own_a], of_a, at.row + own_a, k, full + stage);
            if (b && BOTH_SHARED)
                tma_load_shared<SHARE_B, 1>(place, Bs[stage][own_b / 32][own_b % 32], of_b, at.col + own_b, k, full + stage);
            if (b && !BOTH_SHARED)
                #pragma unroll
                for (int n = own_b; n < own_b + COLUMNS_B; n += 32)  // or some rows of 32 columns
                    tma_load_shared<SHARE_B, 1>(place, Bs[stage][n / 32][n % 32], of_b, k + n % 32, at.col + n / 32 * 32,
                                                full + stage);
        };
        int stage = 0, parity = 1, turn = 0;
        if (maps && warp != CONSUMERS / 32) return;
        wait_for_prerequisites();  // the consumers wait for what comes after it
        if (maps && elect_one())
            for (unsigned tile = first_tile; tile < tiles; tile += at_once) {
                if (tile > first_tile) corner = corner_of(tile);
                #pragma unroll 1
                for (int part = begin; part < end; ++part) {
                    mbarrier_wait(empty + stage, parity);  // the consumers have read what was there
                    fetch(stage, corner, part * BK, true, true);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        if (!maps)  // in a loop of its own, as in 23; four warps take turns
            for (unsigned tile = first_tile; tile < tiles; tile += at_once) {
                const Corner at = corner_of(tile);
                const auto [row, col, matrix] = at;
                const float *own_a = A + TO_MATRIX(matrix, STRIDE_A), *own_b = B + TO_MATRIX(matrix, STRIDE_B);
                #pragma unroll 1
                for (int part = begin; part < end; ++part) {
                    if (turn == warp % 4) {
                        const int k = part * BK;
                        mbarrier_wait(empty + stage, parity);
                        if (!a_mapped)
                            copy_box_swizzled<BM, 1, BM % 64 ? 32 : 64>(As[stage], own_a + (long long)row * lda + k, lda,
                                                                        M - row, K - k, 0);
                        if (!b_mapped && BOTH_SHARED)
                            copy_box_swizzled<BN, 1, 32>(Bs[stage], own_b + (long long)col * ldb + k, ldb, N - col,
                                                         K - k, 0);
                        if (!b_mapped && !BOTH_SHARED)
                            #pragma unroll 1
                            for (int n = 0; n < BN; n += 32)
                                copy_box_swizzled<BK, 1, 32>(Bs[stage][n / 32], own_b + (long long)k * ldb + col + n,
                                                             ldb, K - k, N - col - n, 0);
                        fence_proxy_async();
                        if (elect_one()) fetch(stage, at, k, a_mapped, b_mapped);
                        mbarrier_arrive(full + stage);
                    }
                    if (++turn == 4) turn = 0;
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        if (CLUSTER > 1 && warp == CONSUMERS / 32 && elect_one()) producer_tail<STAGES>(empty, stage, parity);
        return;  // an exited thread counts as arrived at the barriers of the cluster
    }

    setmaxnreg_inc<CONSUMER_REGISTERS>();
    // Two warps share 32 columns. For each k a thread holds two neighbours of B, which are rows lane / 4 and
    // lane / 4 + 8 of the product's 64 x BM. Which columns of B these are is free to choose, as long as C is stored to
    // the same columns. A 64-bit shared access serves 16 lanes at once. These read 16-byte units u and u ^ 5 of four
    // rows of B, and write units u and u ^ 5 of four rows of C that lie two apart: after the swizzle, u ^ row % 8, that
    // is each of the eight units once, and no bank conflict. With TRANSA those columns are rows of C: of four, again
    // two apart modulo 8, they write two units side by side.
    const int turn = PINGPONG ? warp / 4 : 0;  // every second tile is this warpgroup's
    const int box = warp / 2 - turn * 2, k_lane = lane % 4;
    const int unit = lane / 8 % 2 * 5 ^ lane / 16 ^ warp % 2 * 2, n_lane = unit * 4 + lane / 4 % 2 * 2;
    const int n_first = BOTH_SHARED ? warp % 2 * 16 + lane / 4 : n_lane;  // its columns of B, two
    const int n_step = BOTH_SHARED ? 8 : 1;
    [[maybe_unused]] const int b_low = k_lane * 32 + (n_lane ^ k_lane * 4);
    [[maybe_unused]] const int b_high = (k_lane + 4) * 32 + (n_lane ^ (k_lane + 4) * 4);

    const int c_rows = TRANSA ? N : M, c_columns = TRANSA ? M : N;
    float sums[HALVES][BM / 2] = {};  // at 4 * j + e: row 8 * j + 2 * k_lane + e of A, column n_first; at + 2: n_first + n_step
    unsigned even[16], odd[16];  // B for four steps of 8 k: products read one while the other is loaded
    int stage = 0, parity = 0, before = 0;
    const auto release = [&](int stage) {  // in all blocks that write to it
        if (!BOTH_SHARED) __syncwarp();  // all lanes have read
        if (CLUSTER == 1 && lane == 0) mbarrier_arrive(empty + stage);
        if (CLUSTER > 1 && lane < CLUSTER) mbarrier_arrive_cluster(empty + stage, lane);
    };
    const auto multiply = [&](int half, unsigned (&b)[16], bool add) {
        auto& sum = sums[half];
        if (half == 0) mbarrier_wait(full + stage, parity);
        const Descriptor a = make_descriptor(As[stage], 16, 1024);
#if BOTH_SHARED
        const Descriptor b_rows = make_descriptor(Bs[stage][half * 2 + box / 2 * 2], 16, 1024);  // 64 of them
        wgmma_fence();
        #pragma unroll
        for (int k = 0; k < BK / 8; ++k)
            wgmma(sum, advance_descriptor(b_rows, 32 * k), advance_descriptor(a, 32 * k), add || k > 0);
#else
        const float* bs = Bs[stage][half * 2 + box][0];
        #pragma unroll
        for (int k = 0; k < BK / 8; ++k) {
            const uint2 low = *(const uint2*)(bs + k * 8 * 32 + b_low);
            const uint2 high = *(const uint2*)(bs + k * 8 * 32 + b_high);
            b[4 * k] = low.x, b[4 * k + 1] = low.y, b[4 * k + 2] = high.x, b[4 * k + 3] = high.y;
        }
        wgmma_fence();
        #pragma unroll
        for (int k = 0; k < BK / 8; ++k) wgmma(sum, b + 4 * k, advance_descriptor(a, 32 * k), add || k > 0);
#endif
        wgmma_commit_group();
        wgmma_wait_group<1>();
        if (half == 0 && add) release(before);  // the stage before may be filled again
        if (half < HALVES - 1) return;
        before = stage;
        if (++stage == STAGES) stage = 0, parity ^= 1;
    };

    // Of the four sums from 4 * j on, two are in a row of C: e and e + 2 or, with TRANSA, 2 * e and 2 * e + 1. They
    // go to shared memory, to rows of `pitch` floats, from row m of A and column n of B on, at a place that `swizzle`
    // moves as TMA would.
    const int next = TRANSA ? 2 : 1, pair = TRANSA ? 1 : 2;
    const auto store_two = [&](float* rows, int pitch, int m, int n, int e, bool swizzle, float x, float y) {
        const int m_lane = 2 * k_lane + e, n_row = n_first + e;
        if (TRANSA) {
            float* to = &rows[(n + n_row) * pitch];
            *(float2*)&to[m + 2 * k_lane ^ swizzle * (n_row % 8 * 4)] = make_float2(x, y);
        } else {
            float* to = &rows[(m + m_lane) * pitch + n];
            const int unit = swizzle * m_lane * 4;
            if (!BOTH_SHARED) *(float2*)&to[n_first ^ unit] = make_float2(x, y);
            else to[n_first ^ unit] = x, to[n_first + n_step ^ unit] = y;
        }
    };
    const auto leave_out_a_tile = [&] {  // the other warpgroup's
        const int next = stage + stages_of_k;
        stage = next % STAGES, parity ^= next / STAGES % 2;
    };
    if (turn) leave_out_a_tile();
    for (unsigned tile = first_tile + turn * at_once; tile < tiles; tile += (1 + PINGPONG) * at_once) {
        if (PINGPONG && tile > first_tile) wait_for_turn(turn);
        if (begin < end) {
            #pragma unroll 1
            for (int part = begin;;) {
                multiply(0, even, part > begin);
                if (HALVES == 2) multiply(1, odd, part > begin);
                if (++part == end) break;
                if (HALVES == 2) continue;
                multiply(0, odd, true);
                if (++part == end) break;
            }
            if (PINGPONG && tile + at_once < tiles) give_turn_to(1 - turn);
            wgmma_wait_all(sums);
            release(before);
            if (PINGPONG) leave_out_a_tile();
        }
        const auto [row, tile_col, matrix] = corner_of(tile);
        float* const own_c = C + TO_MATRIX(matrix, stride_c);
        const auto column_of = [&, tile_col = tile_col](int half) { return tile_col + (half * 2 + box) * 32; };  // of two warps, of B
        const int c_row = TRANSA ? tile_col : row, c_col = TRANSA ? row : tile_col;
        const Epilogue epilogue = MAKE_EPILOGUE_FROM(TO_MATRIX(matrix, stride_c), c_rows, c_columns, ldc);
        const auto finished = [&, row = row](int half, int i) {
            const unsigned m = row + i / 4 * 8 + 2 * k_lane + i % 2, n = column_of(half) + n_first + i % 4 / 2 * n_step;
            return epilogue(alpha * sums[half][i], TRANSA ? n : m, TRANSA ? m : n);
        };

        // Where a row of C begins within a sector TMA's boxes of 32 columns write half of one at both ends, which takes L2 as
        // long as three whole ones. That matters where a result is all there is to write.
        const bool across_sectors = aligned16(C, ldc) && ON_UNITS(stride_c, sizeof(float))
                                    && ((unsigned long long)C % 32 || ldc % 8);
        const bool wide_rows = COLUMNS == 128 && !PINGPONG && CLUSTER == 1 && K <= 64
                               && (long long)M * N * MATRICES >= 1 << 23 && across_sectors;
        const auto both_warps = [&] { asm volatile("bar.sync %0, 64;" :: "r"(1 + warp / 2) : "memory"); };
        if (SPLIT > 1) {
            named_barrier_sync<CONSUMERS>();  // all have read the last stage
            const auto shared = (float(*)[COLUMNS + 4])memory;
            #pragma unroll
            for (int i = 0; i < BM / 2; i += 4)
                #pragma unroll
                for (int e = 0; e < 2; ++e)
                    store_two(shared[0], COLUMNS + 4, 2 * i, box * 32, e, false, sums[0][i + next * e],
                              sums[0][i + next * e + pair]);
            cluster_sync();  // all sums of this tile have been written

            constexpr int PIECE = BM * BN / 4 / SPLIT;  // four sums each, that this block adds up
            const auto store = [&](int i, float4 v) {
                const int q = rank * PIECE + i, down = c_row + q / (COLUMNS / 4), right = c_col + q % (COLUMNS / 4) * 4;
                const float total[4] = {v.x, v.y, v.z, v.w};
                if (down < c_rows && right < c_columns)
                    store4(own_c + (long long)down * ldc + right, total, c_columns - right, aligned16(own_c, ldc), alpha, beta,
                           epilogue, down, right);
            };
            const auto pieces = (float4(*)[PIECE])(workspace + 1024);  // of each block; before them counters, SMS / 2 at most
            #pragma unroll 4
            for (int j = 0; j < PIECE / CONSUMERS; ++j) {
                const int i = j * CONSUMERS + self, q = rank * PIECE + i;
                float4 total = {};
                #pragma unroll
                for (int other = 0; other < SPLIT; ++other) {
                    const float4 v = ld_shared_cluster(&shared[q / (COLUMNS / 4)][q % (COLUMNS / 4) * 4], other);
                    total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
                }
                if (SHARE && sharers > 1) __stcg(&pieces[blockIdx.x][i], total);
                else store(i, total);
            }
            cluster_sync_relaxed();  // no block exits while others read its memory
            if (SHARE && sharers > 1) {
                const unsigned low = tile * sharers * SPLIT + rank;  // the first block that has this piece
                if (last_of(sharers, workspace + tile * SPLIT + rank, [] { named_barrier_sync<CONSUMERS>(); }))
                    reduce_parts<CONSUMERS, 1, 8>([&](unsigned i) { return pieces[low + i * SPLIT]; }, 0, sharers - 1, self,
                                                  PIECE, store);
            }
        } else if (wide_rows) {
            // Through shared memory, too, but rows of 128 columns at a time, which lie in boxes of all warps side by side. With
            // TRANSA each second row of two warps' 32 lies in their two boxes.
            constexpr int WARPS = TRANSA ? 2 : CONSUMERS / 32, ROWS = TRANSA ? 16 : 32, APART = TRANSA ? 2 : 1;
            const auto all_warps = [&] {
                if (TRANSA) both_warps();
                else named_barrier_sync<CONSUMERS>();
            };
            const auto store_rows = [&](int down, int right) {  // from there in C on
                const int n = right + 4 * lane;
                #pragma unroll
                for (int i = warp % WARPS; i < ROWS; i += 4 * WARPS) {
                    float4 v[4];  // read before any of them is stored
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const int from = i + j * WARPS;
                        v[j] = *(const float4*)(TRANSA ? Cs[warp / 2][0][0] + from * 128 + (4 * lane ^ from % 4 * 8)
                                                       : &Cs[lane / 8][0][from][4 * lane % 32 ^ from % 8 * 4]);
                    }
                    #pragma unroll
                    for (int j = 0; j < 4; ++j)
                        if (const unsigned r = down + (i + j * WARPS) * APART; r < c_rows)
                            store4(own_c + (long long)r * ldc + n, &v[j].x, c_columns - n, true, alpha, beta, epilogue, r, n);
                }
            };
#if TRANSA
            #pragma unroll
            for (int e = 0; e < 2; ++e) {
                all_warps();  // the last rows have been read
                #pragma unroll
                for (int i = 2 * e; i < BM / 2; i += 4) {
                    const int to = n_first / 2;
                    *(float2*)(Cs[warp / 2][0][0] + to * 128 + (2 * i - 4 * e + 2 * k_lane ^ to % 4 * 8))
                        = make_float2(sums[0][i], sums[0][i + 1]);
                }
                all_warps();
                store_rows(column_of(0) + e, row);
            }
#else
            #pragma unroll
            for (int m = 0; m < BM; m += 32) {
                all_warps();  // the last rows have been read
                #pragma unroll
                for (int j = 0; j < 4; ++j)
                    #pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int i = m / 2 + 4 * j + e;
                        store_two(Cs[warp / 2][0][0], 32, 8 * j, 0, e, true, sums[0][i], sums[0][i + 2]);
                    }
                all_warps();
                store_rows(row + m, tile_col);
            }
#endif
        } else if (aligned16(C, ldc) && ON_UNITS(stride_c, sizeof(float)) && c_columns % 4 == 0 && beta == 0.f) {  // TMA writes 16 bytes or none
            // TMA stores boxes of 32 x 32, from two places in turn, while the next tile begins.
            const bool leader = warp % 2 == 0 && lane == 0;
            #pragma unroll
            for (int b = 0; b < BOXES; ++b) {
                const int half = b / (BM / 32), m = b % (BM / 32) * 32, col = column_of(half);
                const auto cs = Cs[warp / 2][b % 2];
                // The box has been read. Where their number is odd the last tile's last one was here, too.
                if (leader && b == 0) tma_store_wait_group_read<BOXES % 2 == 0>();
                if (leader && b > 0) tma_store_wait_group_read<1>();
                both_warps();
                #pragma unroll
                for (int j = 0; j < 4; ++j)
                    #pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int i = m / 2 + 4 * j + next * e;
                        store_two(cs[0], 32, 8 * j, 0, e, true, finished(half, i), finished(half, i + pair));
                    }
                fence_proxy_async();
                both_warps();
                if (leader) {
                    tma_store(MATRIX_MAP(map_c, matrix, stride_c, sizeof(float)), TRANSA ? col : row + m,
                              TRANSA ? row + m : col, cs);
                    tma_store_commit_group();
                }
            }
        } else {  // what TMA cannot write: through shared memory, too, then 32 neighbours of a row at a time
            #pragma unroll
            for (int b = 0; b < BOXES; ++b) {
                const int half = b / (BM / 32), m = b % (BM / 32) * 32, col = column_of(half);
                const auto cs = Cs[warp / 2][0];
                both_warps();  // the last box has been read
                #pragma unroll
                for (int j = 0; j < 4; ++j)
                    #pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int i = m / 2 + 4 * j + next * e;
                        store_two(cs[0], 32, 8 * j, 0, e, true, sums[half][i], sums[half][i + pair]);
                    }
                both_warps();
                const int first_row = TRANSA ? col : row + m, c_column = (TRANSA ? row + m : col) + lane;
                if (c_column < c_columns)
                    #pragma unroll 4
                    for (int r = warp % 2; r < 32 && first_row + r < c_rows; r += 2) {
                        float* here = own_c + (long long)(first_row + r) * ldc + c_column;
                        const float value = alpha * cs[r][lane ^ r % 8 * 4];
                        *here = epilogue(beta == 0.f ? value : value + beta * *here, first_row + r, c_column);
                    }
            }
        }
    }
    launch_dependents();
    if (lane == 0) tma_store_wait_group_read<0>();  // shared memory must outlive the stores
}
