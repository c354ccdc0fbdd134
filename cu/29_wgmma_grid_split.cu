// k shared by blocks anywhere on the GPU, through memory
//
// A cluster must find its SMs in one part of the GPU (a GPC), and then 8 blocks can share a tile at most, 17
// clusters of 6 find room, but only 15 of 7 or 8: 512 x 512 outputs of a deep k, 16 tiles of 128 x 128, keep 96
// SMs busy. Here SMs / tiles blocks take a tile together, wherever they are. They leave their sums in a
// workspace, and when all of a tile have done so, each adds up a part of it, in the order of the blocks, so
// that equal inputs give equal bits. It takes longer than to read each other's shared memory: for deep k only.
//
// At 512 x 512 x 16384 it takes 24 to 26 us, clusters of 6 take 27, cuBLAS 20 (H200). Some 6 us are for meeting
// and adding up, and a stage takes 0.43 us, where the tensor cores need 0.28. That did not change with parts of k
// in one piece, nor with rows of tiles that begin at different k.
//
// /// kernel
// entry = "matmul"
// dtype = "bf16"
// min_arch = "sm_90a"
// block = "2 * BM + 128"
// tile  = ["BM", "BN"]
// grid  = "SMS"
// where = ["1024 <= STAGES * (BM + BN) <= 1536", "BM + BN <= 320"]
// shared = "STAGES * (128 * (BM + BN) + 16)"
// cooperative = true
// workspace = "16 * SMS + 4 * SMS * BM * BN"
// loads = "BM + BN"
// sass  = ["HGMMA == 4", "HGMMA in loop == 4", "WARPGROUP.DEPBAR in loop == 1", "no BAR in loop",
//          "UTMALDG", "no UCGABAR_WAIT", "no LDL", "no STL"]
// claim = "128 SMs busy where clusters reach 96: 16 tiles, each shared by 8 blocks."
// predict = ["seconds <= 0.9 of 26_wgmma_split at M=512 N=512 K=16384"]
//
// [tensormaps]
// A = {box = ["BM", 64], swizzle = 128}
// B = {box = [64, 64], swizzle = 128}
//
// [params]
// BM = [128, 64]
// BN = [128, 64, 256]
// STAGES = [6, 4, 8, 12]
// ///

#include "elements.cuh"
#include "grid.cuh"
#include "stage.cuh"
#include "wgmma.cuh"

#define QUADS (BN / 8)      // of a thread's sums: two columns of two rows

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 1)
                       matmul(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                              const ELEMENT* A, const ELEMENT* B, ELEMENT* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta, unsigned* workspace)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const auto stages = (Stage*)memory;
    auto full = (Barrier*)(stages + STAGES), empty = full + STAGES;

    unsigned* counters = workspace;  // for each tile, of blocks that have left their sums
    auto parts = (float4(*)[QUADS][CONSUMERS])(workspace + 4 * gridDim.x);  // one a block

    // The first `sharers` blocks share the first tile, and so on; of k, in stages, each takes every `sharers`-th.
    // With tiles for more than half of the blocks, each takes whole ones in turn.
    const unsigned tiles_n = (N + BN - 1u) / BN, tiles = (M + BM - 1u) / BM * tiles_n;
    const int stages_of_k = (K - 1) / BK + 1;
    const unsigned sharers = max(1u, min(gridDim.x / tiles, (unsigned)stages_of_k));
    const unsigned first = blockIdx.x / sharers, step = gridDim.x / sharers, rank = blockIdx.x % sharers;
    if (first >= min(tiles, step)) return;  // more SMs than shares

    const int self = threadIdx.x, lane = self % 32, warp = __shfl_sync(~0u, self / 32, 0);  // alike in a warp
    const bool map_for_a = has_map(A, lda), map_for_b = has_map(B, ldb), maps = map_for_a && map_for_b;
    if (self == CONSUMERS) {
        read_soon(map_a), read_soon(map_b);
        make_stage_barriers(full, empty, maps, CONSUMERS / 128);  // a warpgroup arrives as one
    }
    ready<CONSUMERS + PRODUCERS>(maps && self >= CONSUMERS);

    int stage = 0;
    if (self >= CONSUMERS) {
        int parity = 1;
        if (maps && self == CONSUMERS)
            for (unsigned tile = first; tile < tiles; tile += step) {
                const int row = tile / tiles_n * BM, col = tile % tiles_n * BN;
                for (int part = rank; part < stages_of_k; part += sharers) {
                    wait(empty + stage, parity);  // what was there has been multiplied
                    stages[stage].fetch(map_a, map_b, row, col, part * BK, full + stage);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        if (!maps)  // apart, as in 23
            for (unsigned tile = first; tile < tiles; tile += step) {
                const int row = tile / tiles_n * BM, col = tile % tiles_n * BN;
                for (int part = rank; part < stages_of_k; part += sharers) {
                    wait(empty + stage, parity);
                    if (self == CONSUMERS)
                        stages[stage].fetch(map_a, map_b, row, col, part * BK, full + stage, map_for_a,
                                            map_for_b);
                    stages[stage].copy(A, B, row, col, part * BK, M, N, K, lda, ldb, map_for_a, map_for_b);
                    arrive(full + stage);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        return;
    }

    const bool words = (unsigned long long)C % 4 == 0 && ldc % 2 == 0;
    int parity = 0;
    for (unsigned tile = first; tile < tiles; tile += step) {
        float sum[BN / 2];
        int last = 0;
        #pragma unroll 1
        for (int part = rank; part < stages_of_k; part += sharers) {
            wait(full + stage, parity);
            const Operand a = operand(stages[stage].a[warp / 4 * 64], 0, 1024);
            const Operand b = operand(stages[stage].b, 8192, 1024);
            begin_products();
            #pragma unroll
            for (int k = 0; k < BK; k += 16)
                multiply(ELEMENT(), sum, further(a, 2 * k), further(b, 128 * k), part > rank || k > 0);
            commit_products();
            wait_for_products<1>();
            if (self % 128 == 0 && part > rank) arrive(empty + last);  // while the youngest go on
            last = stage;
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        wait_for_sums(sum);
        if (self % 128 == 0) arrive(empty + last);

        // Floats 4j to 4j + 3 are columns 8j + n and the next, of row m and of the one eight below.
        const unsigned m = tile / tiles_n * BM + 16 * warp + lane / 4, n = tile % tiles_n * BN + lane % 4 * 2;
        const auto store = [&](int j, float4 v) {
            ELEMENT* c = C + (long long)m * ldc + n + 8 * j;
            const int left = N - (int)(n + 8 * j);
            if (m < M) store_pair(c, v.x, v.y, left, words, alpha, beta);
            if (m + 8 < M) store_pair(c + 8ll * ldc, v.z, v.w, left, words, alpha, beta);
        };
        if (sharers == 1) {
            #pragma unroll
            for (int j = 0; j < QUADS; ++j)
                store(j, make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]));
            continue;
        }

        #pragma unroll
        for (int j = 0; j < QUADS; ++j)
            parts[blockIdx.x][j][self] = make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
        meet<CONSUMERS>();  // all their stores come before what follows
        if (self == 0) {
            // One adds so much that all together turn the highest bit and leave 0 below it: nobody has to set
            // the counter back for the next launch. (So do the grid barriers of cooperative groups.)
            const unsigned before = add_release(counters + tile, rank ? 1 : 0x80000000 - (sharers - 1));
            while ((load_acquire(counters + tile) ^ before) >> 31 == 0) {}
        }
        meet<CONSUMERS>();
        const unsigned low = blockIdx.x - rank, high = low + sharers - 1;
        const unsigned begin = QUADS * rank / sharers, end = QUADS * (rank + 1) / sharers;  // of each thread's
        const auto part = [&](unsigned block) { return &parts[block][0][0]; };
        const auto store_at = [&](unsigned at, const float4& v) { store(at / CONSUMERS, v); };
        if (sharers <= 8)
            add_up<CONSUMERS, 2, 8>(part, low, high, begin * CONSUMERS + self, end * CONSUMERS, store_at);
        else
            add_up<CONSUMERS, 1, 16>(part, low, high, begin * CONSUMERS + self, end * CONSUMERS, store_at);
    }
}
