// Small and thin products in any layout: small blocks, as many as fill the GPU
//
// The rungs before copy with TMA, give a block most of an SM, and have tiles of 64 x 128 and more. 3000 x 16 or
// 200 x 200 outputs are few of these, mostly empty, and a pipeline of 130 KB takes longer to start than to run. Here a
// block has 128 threads and a tile of as little as 16 columns, and an SM holds several. cp.async copies the tiles as they
// lie in memory. From an operand with k along its rows a thread reads four k of a row at once, from another one four
// neighbours of the same k, both with 128-bit loads: so each of the four layouts is read where it is.
//
// If there are few tiles, blocks share them along k, as many as fill the GPU: 64 for one tile if need be. With SPLIT=8
// eight of them are a cluster and add their sums through shared memory. No block waits for one of another cluster: the
// one that comes last adds the sums of all. Equal inputs give equal bits. With BLOCKS=0 only a cluster shares a tile, so that
// the order of a sum does not depend on M and N. With STAGES=1 more blocks fit on an SM: for short k.
//
// With TURN=1 a tile with k along its rows is turned as it is copied, float by float. A thread then has 8 x 8 outputs and
// reads one k after the other, ahead of the products: its operands lie in register banks that a cycle can read together.
// With SLICES warps share outputs, and each takes a slice of a stage's k. See docs/notes/33_small_tiles.md.
//
// /// kernel
// entry = "matmul"
// after = "15_split_k"
// min_arch = "sm_90"
// block = "128"
// tile  = ["BM", "BN - 8 * OWN"]
// grid  = ["TILES_X * TILES_Y * TILES_Z",
//          "SPLIT * max(1, min(8, K // (128 * SPLIT), min(1024, BLOCKS * SMS) // (TILES_X * TILES_Y * TILES_Z * SPLIT)))"]
// where = ["BM // WARPS_M % 16 == 0", "BM // WARPS_M <= 64", "BN * WARPS_M * SLICES % 64 == 0", "BM * BN >= 1024",
//          "STAGES > 1 or BLOCKS + SPLIT + TURN == 1", "WARPS_M * SLICES <= 4", "SLICES == 1 or TURN",
//          "BN * WARPS_M * SLICES <= 128 or TURN and BM // WARPS_M == 32 and BN * WARPS_M * SLICES <= 256",
//          "SLICES * BM * BN == 8192 or not TURN"]
// shared = "max(STAGES * 128 * (TRANSA * (BM + 8) + (1 - TRANSA) * (BM + TURN * 4 + (1 - TURN) * BM // 8) + (1 - TRANSB) * (BN + 8) + TRANSB * (BN + TURN * 4 + (1 - TURN) * BN // 8)), 4 * BM * (BN + 4))"
// workspace = "min(1, GRID_Y // SPLIT - 1) * (4096 + min(1024, BLOCKS * SMS) // SPLIT * 4 * BM * BN)"
// programmatic = 1
// loads = "BM + BN"
// sums  = "fma"
// parts = "(BLOCKS == 0) * (SLICES == 1) * SPLIT"
// sass  = ["LDGSTS.128 if TRANSA or not TRANSB or not TURN", "LDS.128 in loop >= 8", "no LDS.32 in loop", "FFMA share in loop >= 60%", "ACQBULK", "PREEXIT", "no LDL", "no STL"]
// claim = "Blocks for all SMs: where k is long up to 64 share a tile (SPLIT=8), and none waits for another cluster."
// predict = ["conflicts == 0"]
//
// [params]
// BM = [64, 128, 32, 16, 256]
// BN = [64, 32, 16, 128, 256]
// WARPS_M = [2, 4, 1]
// STAGES = [4, 3, 2, 1]
// BLOCKS = [2, 3, 4, 0]
// SPLIT = [1, 4, 8]
// TURN = [0, 1]
// SLICES = [1, 2, 4]
// OWN = [0, 1]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#define TURNING TURN
#include "batch.cuh"
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "small_tiles.cuh"

// A warp's outputs, and the grid that its lanes form. With SLICES > 1 warps share outputs: each takes a slice of k.
#define WM (BM / WARPS_M)
#define WN (BN * WARPS_M * SLICES / 4)
#define LANES_M (TURN && WM == 32 ? 4 : 8)
#define LANES_N (32 / LANES_M)
#define DEEP (BK / SLICES)       // k of a stage for a warp
#define CHUNK (DEEP < 16 ? DEEP : 16)  // of them in code without a loop: more would be slow to fetch
#define PITCH_A (BM + (TRANSA ? 8 : UNIT))  // floats from one k to the next, in tiles that are turned
#define PITCH_B (BN + (TRANSB ? UNIT : 8))
#define TM (WM / LANES_M)        // a thread's outputs
#define TN (WN / LANES_N)

// The blocks of an SM that registers must suffice for. Left to itself the compiler makes room for one more with these
// tiles, and spills one or two registers for it.
#if TURN
#define LEAST_BLOCKS , 3
#elif STAGES == 1 && BM == 128 && BN == 16 && TRANSA && TRANSB
#define LEAST_BLOCKS , 7
#elif BM == 16 && BN == 64 && TRANSA && TRANSB
#define LEAST_BLOCKS , 8
#elif BN == 64 && (BM == 32 || BM == 64 && WARPS_M == 1) || BN == 32 && (BM >= 64 && WARPS_M == 2 || BM == 64 && SPLIT > 1)
#define LEAST_BLOCKS , 4
#else
#define LEAST_BLOCKS
#endif

// A thread's rows of the tile of A, or columns of that of B: `COUNT` of the LANES * COUNT that the warp has. If the tile
// is K-major, lanes read neighbours; else each lane reads up to four at once.
template <int COUNT, int LANES, bool K_MAJOR>
struct Fragment {
    static constexpr int vector = K_MAJOR && !TURNING ? 1 : COUNT < 4 ? COUNT : 4;
    float at[4][COUNT];  // of four k

    __device__ static int place(int lane, int i) { return (i / vector * LANES + lane) * vector + i % vector; }

    template <int EXTENT>
    __device__ void read(const Tile<EXTENT, K_MAJOR>& tile, int first, int lane, int k)
    {
        if (K_MAJOR)
            #pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const float4 v = *(const float4*)&tile.at[first + place(lane, i)][k];
                at[0][i] = v.x, at[1][i] = v.y, at[2][i] = v.z, at[3][i] = v.w;
            }
        else
            #pragma unroll
            for (int e = 0; e < 4; ++e)
                #pragma unroll
                for (int i = 0; i < COUNT; i += vector) {
                    const float* from = &tile.at[k + e][first + place(lane, i)];
                    if (vector == 4) *(float4*)&at[e][i] = *(const float4*)from;
                    else *(float2*)&at[e][i] = *(const float2*)from;
                }
    }
};

typedef Fragment<TM, LANES_M, !TRANSA> FragmentA;
typedef Fragment<TN, LANES_N, TRANSB> FragmentB;

#if SPLIT > 1
extern "C" __global__ void __cluster_dims__(1, SPLIT, 1) __launch_bounds__(THREADS LEAST_BLOCKS)
#else
extern "C" __global__ void __launch_bounds__(THREADS LEAST_BLOCKS)
#endif
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER BATCH_PARAMETERS,
                              unsigned* workspace)
{
    extern __shared__ __align__(16) float memory[];  // dynamic: it may exceed 48 KB
    // Neighbours read the same of B, lanes two apart the same of A: an access of 128 bits then takes two wavefronts, not four.
    // Eight lanes store their sums to four rows, two apart, and two columns: without a bank conflict.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int of_eight = lane & 4 | lane % 2 * 2 | lane / 8 % 2, of_four = lane / 2 % 2 | lane / 16 * 2;
    const int lane_m = LANES_M == 8 ? of_eight : of_four, lane_n = LANES_M == 8 ? of_four : of_eight;
    const int warp_m = warp % WARPS_M * WM, slice = warp / WARPS_M % SLICES, warp_n = warp / (WARPS_M * SLICES) * WN;
    TAKE_PRODUCT(A, B, C, M, N, K, lda, ldb, ldc);
    const unsigned tiles_n = tiles_across(N), tile = TILE_OF_MATRIX((M + BM - 1u) / BM * tiles_n);
    const auto [row, col] = corner_of(tile, tiles_n);

    wait_for_prerequisites();
    float sum[TM * TN] = {};
    multiply_share(
        memory, A, B, M, N, K, lda, ldb, row, col, share_of((K - 1) / BK + 1, blockIdx.y, gridDim.y),
        [&](const Tile<BM, !TRANSA>& as, const Tile<BN, TRANSB>& bs, int depth) {
#if TURN
            const float* from_a = &as.at[slice * DEEP][warp_m + lane_m * 4];
            const float* from_b = &bs.at[slice * DEEP][warp_n + lane_n * 4];
            float a[2][TM], b[2][TN];  // fragments of one k, and of the next
            const auto read = [&](int k) {
                #pragma unroll
                for (int i = 0; i < TM; i += 4)
                    *(float4*)&a[k % 2][i] = *(const float4*)(from_a + k * PITCH_A + i * LANES_M);
                #pragma unroll
                for (int j = 0; j < TN; j += 4)
                    *(float4*)&b[k % 2][j] = *(const float4*)(from_b + k * PITCH_B + j * LANES_N);
            };
            read(0);
            #pragma unroll 1
            for (int first = 0; first < DEEP; first += CHUNK, from_a += CHUNK * PITCH_A, from_b += CHUNK * PITCH_B)
                #pragma unroll
                for (int k = 0; k < CHUNK; ++k) {
                    if (first + k + 1 < DEEP) read(k + 1);
                    #pragma unroll
                    for (int i = 0; i < TM; ++i)
                        #pragma unroll
                        for (int j = 0; j < TN; ++j) {
                            const int n = i % 2 ? TN - 1 - j : j;  // back and forth: b[n] is used again
                            sum[i * TN + n] += a[k % 2][i] * b[k % 2][n];
                        }
                }
#else
            FragmentA a;
            FragmentB b;
            #pragma unroll 2  // all of it would be 20 KB of code: small products would wait for the code
            for (int k = 0; k < depth; k += 4) {
                a.read(as, warp_m, lane_m, k);
                b.read(bs, warp_n, lane_n, k);
                #pragma unroll
                for (int e = 0; e < 4; ++e)
                    #pragma unroll
                    for (int i = 0; i < TM; ++i)
                        #pragma unroll
                        for (int j = 0; j < TN; ++j) sum[i * TN + j] += a.at[e][i] * b.at[e][j];
            }
#endif
        });

    launch_dependents();  // not before: the next kernel's blocks would crowd where there is room now
    const auto staged = (Staged<4, TURN>*)memory;  // swapped, for the registers' sake: see the notes
    #pragma unroll 1
    for (int turn = 0; turn < SLICES; ++turn) {  // the slices' sums are added in their order
        if (slice == turn)
            #pragma unroll
            for (int i = 0; i < TM; ++i)
                #pragma unroll
                for (int j = 0; j < TN; j += FragmentB::vector) {
                    float* to = &staged->at[warp_m + FragmentA::place(lane_m, i)][warp_n + FragmentB::place(lane_n, j)];
                    if (turn > 0)
                        #pragma unroll
                        for (int e = 0; e < FragmentB::vector; ++e) sum[i * TN + j + e] += to[e ^ 1];
                    const float* v = &sum[i * TN + j];
                    if (TURN) *(float4*)to = make_float4(v[1], v[0], v[3], v[2]);
                    else if (FragmentB::vector == 4) *(float4*)to = *(const float4*)v;
                    else *to = *v;
                }
        __syncthreads();
    }
    staged->store(C + (long long)row * ldc + col, ldc, M - row, N - col, alpha, beta, workspace,
                  blockIdx.x, blockIdx.y / SPLIT, gridDim.y / SPLIT, MAKE_EPILOGUE(M, N, ldc), row, col);
}
