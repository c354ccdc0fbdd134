// The same for elements of 16 bits, wherever rows begin
//
// Rungs 22 to 35 read operands by tensor maps. Rows that begin elsewhere than at multiples of 16 bytes have none: threads
// copy them, two bytes at a time. Here cp.async copies them, too: the 16-byte units that cover a row, as far ahead as
// those of other operands. When they have arrived, each warp shifts the rows that it has copied to where they belong, 16
// bytes at a time. Room for the unit that such a row has more is where other rows have their padding.
//
// ldmatrix reads the fragments, and transposes those of a tile whose rows do not run along k: so each of the four layouts
// is read where it is, as in rungs 33 and 34.
//
// With OWN=1, for results that are all there is to write, a row of C is put together in shared memory as its sectors lie in
// memory, and stored 16 bytes at a time; a sector belongs to one tile.
//
// /// kernel
// entry = "matmul"
// after = "34_small_tiles_tf32"
// dtype = ["bf16", "fp16"]
// min_arch = "sm_90a"
// block = "128"
// tile  = ["BM", "BN - 16 * OWN"]
// grid  = ["TILES_X * TILES_Y * TILES_Z",
//          "SPLIT * max(1, min(8, K // (128 * SPLIT), min(1024, BLOCKS * SMS) // (TILES_X * TILES_Y * TILES_Z * SPLIT)))"]
// where = ["BM // WARPS_M % 16 == 0", "BM // WARPS_M <= 64", "BN * WARPS_M % 64 == 0", "BN * WARPS_M <= 256", "BM * BN >= 1024",
//          "BM * BN <= 16384", "STAGES > 1 or BLOCKS + SPLIT == 1",
//          "STAGES == 1 and BN > 64 or not OWN"]
// shared = "max(STAGES * (TRANSA * 128 * (BM + 8) + (1 - TRANSA) * 144 * BM + (1 - TRANSB) * 128 * (BN + 8) + TRANSB * 144 * BN), 4 * BM * (BN + 8))"
// workspace = "min(1, GRID_Y // SPLIT - 1) * (4096 + min(1024, BLOCKS * SMS) // SPLIT * 4 * BM * BN)"
// programmatic = 1
// loads = "BM + BN"
// sass  = ["LDGSTS.128", "HMMA.16816.F32 in loop", "LDSM in loop", "SHF", "ACQBULK", "PREEXIT", "no LDL", "no STL"]
// claim = "Rows that begin at any even address cost three reads and two writes of shared memory for two units, and no load of two bytes."
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

#ifndef ELEMENT
#define ELEMENT Bf16
#endif
#if OWN
#define BK 32  // of k in a stage: there is little of it
#endif
#include "batch.cuh"
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "mma_sync.cuh"
#include "small_tiles.cuh"
#include "packed_rows.cuh"

#define WM (BM / WARPS_M)  // a warp's outputs
#define WN (BN * WARPS_M / 4)
#define UNROLL (STAGES == 1 ? 1 : BK / 16)  // of the loop over k in a stage

// Load the four 8 x 8 matrices of 16 rows or columns of an operand from `first` on, and 16 k: if `K_FIRST`, the two of the
// same rows or columns one after the other, else the two of the same k.
template <bool K_FIRST, int EXTENT, bool K_MAJOR>
__device__ inline void load_fragment(unsigned* to, const Tile<EXTENT, K_MAJOR>& tile, int first, int k)
{
    const int lane = threadIdx.x % 32, low = lane / 8 % 2 * 8, high = lane / 16 * 8, in_matrix = lane % 8;
    const int i = first + (K_FIRST ? high : low), of_k = k + (K_FIRST ? low : high);
    if (K_MAJOR) LDMATRIX_X4("", to, &tile.at[i + in_matrix][of_k]);
    else LDMATRIX_X4(".trans", to, &tile.at[of_k + in_matrix][i]);
}

#if SPLIT > 1
extern "C" __global__ void __cluster_dims__(1, SPLIT, 1) __launch_bounds__(THREADS)
#else
extern "C" __global__ void __launch_bounds__(THREADS)
#endif
                       matmul(const ELEMENT* A, const ELEMENT* B, OUT* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER BATCH_PARAMETERS,
                              unsigned* workspace)
{
    extern __shared__ __align__(16) float memory[];  // dynamic: it may exceed 48 KB
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_m = warp % WARPS_M * WM, warp_n = warp / WARPS_M * WN;
    TAKE_PRODUCT(A, B, C, M, N, K, lda, ldb, ldc);
    const unsigned tiles_n = tiles_across(N), tile = TILE_OF_MATRIX((M + BM - 1u) / BM * tiles_n);
    const auto [row, col] = corner_of(tile, tiles_n);

    wait_for_prerequisites();
    float sum[WM * WN / 32] = {};
    multiply_share(
        memory, A, B, M, N, K, lda, ldb, row, col, share_of((K - 1) / BK + 1, blockIdx.y, gridDim.y),
        [&](const Tile<BM, !TRANSA>& as, const Tile<BN, TRANSB>& bs, int depth) {
            #pragma unroll UNROLL
            for (int k = 0; k < depth; k += 16) {
                unsigned a[WM / 16][4], b[WN / 16][4];
                #pragma unroll
                for (int i = 0; i < WM / 16; ++i) load_fragment<false>(a[i], as, warp_m + 16 * i, k);
                #pragma unroll
                for (int j = 0; j < WN / 16; ++j) load_fragment<true>(b[j], bs, warp_n + 16 * j, k);
                #pragma unroll
                for (int i = 0; i < WM / 16; ++i)
                    #pragma unroll
                    for (int j = 0; j < WN / 8; ++j)
                        mma_m16n8k16(ELEMENT(), &sum[(i * (WN / 8) + j) * 4], a[i], &b[j / 2][j % 2 * 2]);
            }
        });

    launch_dependents();  // not before: the next kernel's blocks would crowd where there is room now
    const auto epilogue = MAKE_EPILOGUE(M, N, ldc);
    C += (long long)row * ldc + col;
    if constexpr (OWN && sizeof(OUT) == 2)
        if (beta == 0.f) {
            const auto packed = (PackedRows*)memory;
            if (alpha != 1.f)
                #pragma unroll
                for (int i = 0; i < WM * WN / 32; ++i) sum[i] *= alpha;
            #pragma unroll
            for (int i = 0; i < WM / 8; ++i) {
                const int m = warp_m + 8 * i + lane / 4;
                const OUT* c = C + (long long)m * ldc;
                #pragma unroll
                for (int j = 0; j < WN / 8; ++j) {
                    const float* pair = &sum[(i / 2 * (WN / 8) + j) * 4 + i % 2 * 2];
                    const int n = warp_n + 8 * j + lane % 4 * 2;
                    packed->put(m, n, c, pack<ELEMENT>(epilogue(pair[0], row + m, col + n),
                                                       epilogue(pair[1], row + m, col + n + 1)));
                }
            }
            __syncthreads();
            return packed->store(C, ldc, M - row, N - col, col == 0);
        }
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
    staged->store(C, ldc, M - row, N - col, alpha, beta, workspace, blockIdx.x, blockIdx.y / SPLIT, gridDim.y / SPLIT,
                  epilogue, row, col);
}
