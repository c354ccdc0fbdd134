// The same on tensor cores, with floats rounded to tf32
//
// Rung 25 reads both operands where they are only if k lies along the rows of A, and starts a pipeline as large as an SM.
// mma.sync takes both operands from registers, which threads load in any order: so the small tiles of rung 33 serve tensor
// cores in all four layouts, too. For large products wgmma is faster.
//
// /// kernel
// entry = "matmul"
// after = "33_small_tiles"
// dtype = "tf32"
// min_arch = "sm_90"
// block = "128"
// tile  = ["BM", "BN - 8 * OWN"]
// grid  = ["TILES_X * TILES_Y * TILES_Z",
//          "SPLIT * max(1, min(8, K // (128 * SPLIT), min(1024, BLOCKS * SMS) // (TILES_X * TILES_Y * TILES_Z * SPLIT)))"]
// where = ["BM // WARPS_M % 16 == 0", "BM // WARPS_M <= 64", "BN * WARPS_M % 64 == 0", "BN * WARPS_M <= 256", "BM * BN >= 1024",
//          "BM * BN <= 16384", "STAGES > 1 or BLOCKS + SPLIT == 1"]
// shared = "max(STAGES * (TRANSA * 128 * (BM + 8) + (1 - TRANSA) * 144 * BM + (1 - TRANSB) * 128 * (BN + 8) + TRANSB * 144 * BN), 4 * BM * (BN + 8))"
// workspace = "min(1, GRID_Y // SPLIT - 1) * (4096 + min(1024, BLOCKS * SMS) // SPLIT * 4 * BM * BN)"
// programmatic = 1
// loads = "BM + BN"
// sums  = "mma"
// parts = "(BLOCKS == 0) * SPLIT"
// sass  = ["LDGSTS.128", "HMMA.1688.F32.TF32 in loop", "ACQBULK", "PREEXIT", "no LDL", "no STL"]
// claim = "Tensor cores for 37 x 1677 outputs and k = 59, stored transposed."
// predict = ["conflicts == 0"]
//
// [params]
// BM = [64, 128, 32, 16, 256]
// BN = [64, 32, 16, 128, 256]
// WARPS_M = [2, 4, 1]
// STAGES = [4, 3, 2, 1]
// BLOCKS = [2, 3, 4, 1, 0]
// SPLIT = [1, 8, 2, 4]
// OWN = [0, 1]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#define COVERING true
#include "batch.cuh"
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "small_tiles.cuh"

#define WM (BM / WARPS_M)  // a warp's outputs
#define WN (BN * WARPS_M / 4)

// Element (i, k) of a tile of rows or columns of an operand, rounded to tf32, where rows in memory begin `shift` elements
// after a unit. With a shift of 0 each of the two forms has the 32 lanes, eight neighbours i and four k, on 32 banks.
template <int EXTENT, bool K_MAJOR>
__device__ inline unsigned element(const Tile<EXTENT, K_MAJOR>& tile, int i, int k, unsigned shift)
{
    return operand_bits(K_MAJOR ? tile.at[i][k + shift] : tile.at[k][i + shift]);
}

// Compute d += a * b for 16 x 8 elements and 8 k. A lane holds
// - of a: row lane / 4, k = lane % 4, then eight rows below, then both four k further on;
// - of b: the same k, column lane / 4, then four k further on;
// - of d: row lane / 4, columns 2 * (lane % 4) and the next, then eight rows below.
__device__ inline void mma_m16n8k8(float* d, const unsigned* a, const unsigned* b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#if SPLIT > 1
extern "C" __global__ void __cluster_dims__(1, SPLIT, 1) __launch_bounds__(THREADS)
#else
extern "C" __global__ void __launch_bounds__(THREADS)
#endif
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER BATCH_PARAMETERS,
                              unsigned* workspace)
{
    extern __shared__ __align__(16) float memory[];  // dynamic: it may exceed 48 KB
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_m = warp % WARPS_M * WM, warp_n = warp / WARPS_M * WN;
    TAKE_PRODUCT(A, B, C, M, N, K, lda, ldb, ldc);
    const unsigned tiles_n = tiles_across(N), tile = TILE_OF_MATRIX((M + BM - 1u) / BM * tiles_n);
    const auto [row, col] = corner_of(tile, tiles_n);

    // Tiles begin at multiples of four rows, so that all rows that a lane reads begin as many elements after a unit.
    const auto shift_of = [](const float* at, unsigned lane_row, int ld) { return ((unsigned long long)at / 4 + lane_row * ld) % 4; };
    const unsigned shift_a = shift_of(A, TRANSA ? lane % 4 : lane / 4, lda);
    const unsigned shift_b = shift_of(B, TRANSB ? lane / 4 : lane % 4, ldb);
    wait_for_prerequisites();
    float sum[WM * WN / 32] = {};
    multiply_share(
        memory, A, B, M, N, K, lda, ldb, row, col, share_of((K - 1) / BK + 1, blockIdx.y, gridDim.y),
        [&](const Tile<BM, !TRANSA>& as, const Tile<BN, TRANSB>& bs, int depth) {
            const int end = (depth + 7) / 8 * 8;  // the same in all lanes of a warp
            #pragma unroll 2
            for (int k = lane % 4; k < end; k += 8) {
                unsigned a[WM / 16][4], b[WN / 8][2];
                #pragma unroll
                for (int i = 0; i < WM / 16; ++i)
                    #pragma unroll
                    for (int e = 0; e < 4; ++e)
                        a[i][e] = element(as, warp_m + 16 * i + e % 2 * 8 + lane / 4, k + e / 2 * 4, shift_a);
                #pragma unroll
                for (int j = 0; j < WN / 8; ++j)
                    #pragma unroll
                    for (int e = 0; e < 2; ++e) b[j][e] = element(bs, warp_n + 8 * j + lane / 4, k + e * 4, shift_b);
                #pragma unroll
                for (int i = 0; i < WM / 16; ++i)
                    #pragma unroll
                    for (int j = 0; j < WN / 8; ++j) mma_m16n8k8(&sum[(i * (WN / 8) + j) * 4], a[i], b[j]);
            }
        });

    launch_dependents();  // not before: the next kernel's blocks would crowd where there is room now
    const auto staged = (Staged<8>*)memory;
    #pragma unroll
    for (int i = 0; i < WM / 16; ++i)
        #pragma unroll
        for (int j = 0; j < WN / 8; ++j)
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float* pair = &sum[(i * (WN / 8) + j) * 4 + 2 * half];
                *(float2*)&staged->at[warp_m + 16 * i + 8 * half + lane / 4][warp_n + 8 * j + lane % 4 * 2] =
                    make_float2(pair[0], pair[1]);
            }
    __syncthreads();
    staged->store(C + (long long)row * ldc + col, ldc, M - row, N - col, alpha, beta, workspace,
                  blockIdx.x, blockIdx.y / SPLIT, gridDim.y / SPLIT, MAKE_EPILOGUE(M, N, ldc), row, col);
}
