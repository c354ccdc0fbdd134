// Few k or few tiles: stages of 8 or 16 k, and warps that have half the outputs
//
// 33 copies stages of 32 k. Where k is 32 to 300, that is all of it: an SM's blocks first wait for everything and
// then multiply. Here a stage has 8 or 16 k, so that blocks multiply after the first of them has arrived, while the others
// are on their way. All tiles are stored by rows of k: an operand with k along its rows is turned as it is copied, float by
// float, which costs no more where rows begin anywhere. A thread then reads the operands of one k with 128-bit loads,
// ahead of the products with those of the k before.
//
// A thread has 8 x 4 outputs (OUTPUTS=32) or 8 x 8. With 8 x 4 a tile has twice the warps: where an SM has only a tile or
// two, they hide each other's waits. Blocks share tiles as in 33. See docs/notes/41_turned_tiles.md.
//
// /// kernel
// entry = "matmul"
// after = "33_small_tiles"
// min_arch = "sm_90"
// block = "SLICES * BM * BN // OUTPUTS"
// tile  = ["BM", "BN"]
// grid  = ["TILES_X * TILES_Y * TILES_Z",
//          "SPLIT * max(1, min(8, K // (128 * SPLIT), min(1024, BLOCKS * SMS) // (TILES_X * TILES_Y * TILES_Z * SPLIT)))"]
// where = ["BM // WARPS_M == 32 or BM // WARPS_M == 64", "BN % (32 * OUTPUTS * WARPS_M // BM) == 0",
//          "SLICES * BM * BN <= 256 * OUTPUTS", "SLICES * BM * BN >= 32 * OUTPUTS", "BK // SLICES >= 4"]
// shared = "max(STAGES * 4 * BK * (BM + BN + 8 + TRANSA * 4 + (1 - TRANSB) * 4), 4 * BM * (BN + 4))"
// workspace = "min(1, GRID_Y // SPLIT - 1) * (4096 + min(1024, BLOCKS * SMS) // SPLIT * 4 * BM * BN)"
// programmatic = 1
// loads = "BM + BN"
// sums  = "fma"
// parts = "(BLOCKS == 0) * (SLICES == 1) * SPLIT"
// sass  = ["LDS.128 in loop >= 8", "no LDS.32 in loop", "FFMA share in loop >= 55% if OUTPUTS == 64",
//          "FFMA share in loop >= 45% if OUTPUTS == 32", "ACQBULK", "PREEXIT", "no LDL", "no STL"]
// claim = "Stages of 8 or 16 k: where k is short, copying goes on while blocks multiply."
//
// [params]
// BM = [64, 128, 32, 256]
// BN = [64, 128, 32, 256]
// WARPS_M = [2, 1, 4]
// STAGES = [4, 3, 6]
// BLOCKS = [4, 8, 2, 0, 6]
// SPLIT = [1, 4, 8]
// SLICES = [1, 2]
// OUTPUTS = [64, 32]
// BK = [8, 16]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#include "batch.cuh"
#include "cluster.cuh"
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#define TURNING true
#define THREADS (SLICES * BM * BN / OUTPUTS)
#include "small_tiles.cuh"

// A warp's outputs, and the grid that its lanes form. With SLICES > 1 warps share outputs: each takes a slice of k.
#define WM (BM / WARPS_M)
#define WN (32 * OUTPUTS / WM)
#define LANES_M (WM / 8)
#define LANES_N (32 / LANES_M)
#define TN (OUTPUTS / 8)    // a thread has 8 x TN outputs
#define DEEP (BK / SLICES)  // k of a stage for a warp
#define PITCH_A (BM + (TRANSA ? 8 : UNIT))  // floats from one k to the next
#define PITCH_B (BN + (TRANSB ? UNIT : 8))
// The warps of an SM that registers must suffice for, and its blocks.
#define LEAST_WARPS (OUTPUTS == 32 ? THREADS == 32 ? 16 : 20 : THREADS == 256 ? 16 : 12)
#define LEAST_BLOCKS (LEAST_WARPS * 32 / THREADS)

#if SPLIT > 1
extern "C" __global__ void __cluster_dims__(1, SPLIT, 1) __launch_bounds__(THREADS, LEAST_BLOCKS)
#else
extern "C" __global__ void __launch_bounds__(THREADS, LEAST_BLOCKS)
#endif
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER BATCH_PARAMETERS,
                              unsigned* workspace)
{
    extern __shared__ __align__(16) float memory[];  // dynamic: it may exceed 48 KB
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int of_eight = lane & 4 | lane % 2 * 2 | lane / 8 % 2, of_four = lane / 2 % 2 | lane / 16 * 2;
    const int lane_m = LANES_M == 8 ? of_eight : of_four, lane_n = LANES_M == 8 ? of_four : of_eight;
    const int warp_m = warp % WARPS_M * WM, slice = warp / WARPS_M % SLICES, warp_n = warp / (WARPS_M * SLICES) * WN;
    TAKE_PRODUCT(A, B, C, M, N, K, lda, ldb, ldc);
    const unsigned tiles_m = (M + BM - 1u) / BM, tile = TILE_OF_MATRIX(tiles_m * ((N + BN - 1u) / BN));
    const unsigned row = tile % tiles_m * BM, col = tile / tiles_m * BN;

    wait_for_prerequisites();
    float sum[8][TN] = {};
    multiply_share(
        memory, A, B, M, N, K, lda, ldb, row, col, share_of((K - 1) / BK + 1, blockIdx.y, gridDim.y),
        [&](const Tile<BM, !TRANSA>& as, const Tile<BN, TRANSB>& bs, int) {
            const float* from_a = &as.at[slice * DEEP][warp_m + lane_m * 4];
            const float* from_b = &bs.at[slice * DEEP][warp_n + lane_n * 4];
            float a[2][8], b[2][TN];  // fragments of one k, and of the next
            const auto read = [&](int k) {
                #pragma unroll
                for (int i = 0; i < 8; i += 4)
                    *(float4*)&a[k % 2][i] = *(const float4*)(from_a + k * PITCH_A + i * LANES_M);
                #pragma unroll
                for (int j = 0; j < TN; j += 4)
                    *(float4*)&b[k % 2][j] = *(const float4*)(from_b + k * PITCH_B + j * LANES_N);
            };
            read(0);
            #pragma unroll
            for (int k = 0; k < DEEP; ++k) {
                if (k + 1 < DEEP) read(k + 1);
                #pragma unroll
                for (int i = 0; i < 8; ++i)
                    #pragma unroll
                    for (int j = 0; j < TN; ++j) {
                        const int n = i % 2 ? TN - 1 - j : j;  // back and forth: b[n] is used again
                        sum[i][n] += a[k % 2][i] * b[k % 2][n];
                    }
            }
        });

    launch_dependents();  // not before: the next kernel's blocks would crowd where there is room now
    const auto staged = (Staged<4, true>*)memory;  // pairs of sums swapped, for the registers' sake: see the notes
    #pragma unroll 1
    for (int turn = 0; turn < SLICES; ++turn) {  // the slices' sums are added in their order
        if (slice == turn)
            #pragma unroll
            for (int i = 0; i < 8; ++i)
                #pragma unroll
                for (int j = 0; j < TN; j += 4) {
                    const int m = (i / 4 * LANES_M + lane_m) * 4 + i % 4, n = (j / 4 * LANES_N + lane_n) * 4;
                    float* to = &staged->at[warp_m + m][warp_n + n];
                    if (turn > 0)
                        #pragma unroll
                        for (int e = 0; e < 4; ++e) sum[i][j + e] += to[e ^ 1];
                    *(float4*)to = make_float4(sum[i][j + 1], sum[i][j], sum[i][j + 3], sum[i][j + 2]);
                }
        __syncthreads();
    }
    staged->store(C + (long long)row * ldc + col, ldc, M - row, N - col, alpha, beta, workspace,
                  blockIdx.x, blockIdx.y / SPLIT, gridDim.y / SPLIT, MAKE_EPILOGUE(M, N, ldc), row, col);
}
