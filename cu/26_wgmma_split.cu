// k shared by the blocks of a cluster, for products that are too small for all SMs
//
// 128 x 1024 outputs are 32 tiles of 64 x 64, and for each of 132 SMs k is deep: as in rung 19, SPLIT blocks
// take a tile together, each a part of k. Then each adds up a part of the tile from everybody's shared memory,
// in the order of ranks, so that equal inputs give equal bits. A cluster lies in one part of the GPU (a GPC):
// with one block an SM, 39 clusters of 3 find room on an H200, 30 of 4, 22 of 5, 17 of 6, 15 of 7 or 8.
//
// /// kernel
// entry = "matmul"
// dtype = "bf16"
// min_arch = "sm_90a"
// block = "2 * BM + 128"
// tile  = ["BM", "BN"]
// grid  = ["TILES_X", "TILES_Y", "SPLIT"]
// where = ["768 <= STAGES * (BM + BN) <= 1536", "BM + BN <= 320"]
// shared = "STAGES * (128 * (BM + BN) + 16)"
// loads = "BM + BN"
// sass  = ["HGMMA == 4", "HGMMA in loop == 4", "WARPGROUP.DEPBAR in loop == 1", "no BAR in loop",
//          "UTMALDG", "UCGABAR_WAIT", "no LDL", "no STL"]
// claim = "SPLIT times as many blocks: 96 instead of 32 for 128 x 1024 outputs, and a third of k for each."
// predict = ["seconds <= 0.7 of 23_wgmma_pipeline at M=512 N=512 K=16384"]
//
// [tensormaps]
// A = {box = ["BM", 64], swizzle = 128}
// B = {box = [64, 64], swizzle = 128}
//
// [params]
// BM = [64, 128]
// BN = [64, 128, 256]
// STAGES = [8, 6, 4, 12]
// SPLIT = [2, 3, 4, 5, 6, 7, 8, 1]
// ///

#include "cluster.cuh"
#include "stage.cuh"
#include "wgmma.cuh"

#define THREADS (CONSUMERS + PRODUCERS)
#define ROWS ((BM + SPLIT - 1) / SPLIT)  // of the tile, that a block adds up; the last block perhaps fewer
#define PAD 8               // floats: rows of sums that are written at the same time lie in different banks

extern "C" __global__ void __cluster_dims__(1, 1, SPLIT) __launch_bounds__(THREADS, 1)
                       matmul(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                              const ELEMENT* A, const ELEMENT* B, ELEMENT* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const auto stages = (Stage*)memory;
    auto full = (Barrier*)(stages + STAGES), empty = full + STAGES;
    const auto sums = (float(*)[BN + PAD])memory;
    static_assert(sizeof *sums * BM <= STAGES * sizeof *stages, "no room for the sums");

    const int self = threadIdx.x, lane = self % 32, warp = __shfl_sync(~0u, self / 32, 0);  // alike in a warp
    const unsigned row = blockIdx.y * BM, col = blockIdx.x * BN;

    // This block's part of k, in stages; maybe none.
    const int rank = blockIdx.z, stages_of_k = (K - 1) / BK + 1;
    const int begin = (long long)stages_of_k * rank / SPLIT, end = (long long)stages_of_k * (rank + 1) / SPLIT;

    const bool map_for_a = has_map(A, lda), map_for_b = has_map(B, ldb), maps = map_for_a && map_for_b;
    if (self == CONSUMERS) {
        read_soon(map_a), read_soon(map_b);
        make_stage_barriers(full, empty, maps, CONSUMERS / 128);  // a warpgroup arrives as one
    }
    ready<CONSUMERS + PRODUCERS>(maps && self >= CONSUMERS);

    if (self >= CONSUMERS) {
        int stage = 0, parity = 1;
        if (maps && self == CONSUMERS)
            for (int step = begin; step < end; ++step) {
                wait(empty + stage, parity);  // what was there has been multiplied
                stages[stage].fetch(map_a, map_b, row, col, step * BK, full + stage);
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        if (!maps)  // apart, as in 23
            for (int step = begin; step < end; ++step) {
                const int k = step * BK;
                wait(empty + stage, parity);
                if (self == CONSUMERS)
                    stages[stage].fetch(map_a, map_b, row, col, k, full + stage, map_for_a, map_for_b);
                stages[stage].copy(A, B, row, col, k, M, N, K, lda, ldb, map_for_a, map_for_b);
                arrive(full + stage);
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
    } else {
        float sum[BN / 2] = {};
        int stage = 0, parity = 0, last = 0;
        #pragma unroll 1
        for (int step = begin; step < end; ++step) {
            wait(full + stage, parity);
            const Operand a = operand(stages[stage].a[warp / 4 * 64], 0, 1024);
            const Operand b = operand(stages[stage].b, 8192, 1024);
            begin_products();
            #pragma unroll
            for (int k = 0; k < BK; k += 16)
                multiply(ELEMENT(), sum, further(a, 2 * k), further(b, 128 * k), true);
            commit_products();
            wait_for_products<1>();
            if (self % 128 == 0 && step > begin) arrive(empty + last);  // while the youngest go on
            last = stage;
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        wait_for_sums(sum);

        meet<CONSUMERS>();  // of all: no stage is needed any more
        const int m = 16 * warp + lane / 4, n = lane % 4 * 2;
        #pragma unroll
        for (int j = 0; j < BN / 8; ++j) {
            *(float2*)&sums[m][8 * j + n] = make_float2(sum[4 * j], sum[4 * j + 1]);
            *(float2*)&sums[m + 8][8 * j + n] = make_float2(sum[4 * j + 2], sum[4 * j + 3]);
        }
    }
    __syncwarp();
    cluster_barrier();  // all sums of this tile are there

    const bool units = has_map(C, ldc) && beta == 0.f, words = (unsigned long long)C % 4 == 0 && ldc % 2 == 0;
    for (int q = self; q < min(ROWS, BM - rank * ROWS) * BN / 8; q += THREADS) {
        const int m = rank * ROWS + q / (BN / 8), n = q % (BN / 8) * 8;
        if (row + m >= M) continue;
        float4 v[SPLIT][2];
        #pragma unroll
        for (int other = 0; other < SPLIT; ++other) {
            v[other][0] = read_block(other, &sums[m][n]);
            v[other][1] = read_block(other, &sums[m][n + 4]);
        }
        float total[8] = {};
        #pragma unroll
        for (int other = 0; other < SPLIT; ++other)
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                total[4 * half] += v[other][half].x, total[4 * half + 1] += v[other][half].y;
                total[4 * half + 2] += v[other][half].z, total[4 * half + 3] += v[other][half].w;
            }
        ELEMENT* c = C + (long long)(row + m) * ldc + col + n;
        if (units && (long long)col + n + 8 <= N)
            *(uint4*)c = make_uint4(narrow<ELEMENT>(alpha * total[0], alpha * total[1]),
                                    narrow<ELEMENT>(alpha * total[2], alpha * total[3]),
                                    narrow<ELEMENT>(alpha * total[4], alpha * total[5]),
                                    narrow<ELEMENT>(alpha * total[6], alpha * total[7]));
        else
            #pragma unroll
            for (int e = 0; e < 8; e += 2)
                store_pair(c + e, total[e], total[e + 1], N - (int)(col + n + e), words, alpha, beta);
    }
    __syncwarp();
    cluster_meeting();  // nobody leaves while others read its memory
}
