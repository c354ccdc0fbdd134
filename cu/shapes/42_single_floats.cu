// Copies without branches: whatever the layout, the pitch and the edge
//
// 41 asks in every stage whether rows begin at multiples of 16 bytes and whether the whole tile exists, and computes its addresses
// anew. With two warps a scheduler nothing hides that: of 1485 x 685 x 363 it took a quarter of the time. Here every thread
// copies the same few floats of each stage (cp.async of 4 bytes), from offsets that it keeps to an address that all threads share. What
// is beyond the last row or column is read from the last one: it goes into sums that nobody stores. Only k is asked for, so that the
// loop is one straight piece of code, in which copies stand between products. Where k lies along no rows, and all begin at multiples of
// 16 bytes, a second such loop copies four floats at once.
//
// The first operands of the next stage are read, and its copies waited for, before the last products of this one. A block that has its
// tile alone stores it warp by warp, without waiting for the others. See docs/notes/42_single_floats.md.
//
// /// kernel
// entry = "matmul"
// after = "41_turned_tiles"
// min_arch = "sm_90"
// block = "BM * BN // OUTPUTS"
// tile  = ["BM", "BN"]
// grid  = ["TILES_X * TILES_Y * TILES_Z",
//          "SPLIT * max(1, min(8, K // (128 * SPLIT), min(1024, BLOCKS * SMS) // (TILES_X * TILES_Y * TILES_Z * SPLIT)))"]
// where = ["BM // WARPS_M == 32 or BM // WARPS_M == 64", "BN % (32 * OUTPUTS * WARPS_M // BM) == 0",
//          "BM * BN <= 256 * OUTPUTS", "BM * BN >= 32 * OUTPUTS"]
// shared = "max(STAGES * 4 * BK * (BM + BN + 8 + TRANSA * 4 + (1 - TRANSB) * 4), 4 * BM * (BN + 4))"
// workspace = "min(1, GRID_Y // SPLIT - 1) * (4096 + min(1024, BLOCKS * SMS) // SPLIT * 4 * BM * BN)"
// programmatic = 1
// loads = "BM + BN"
// sums  = "fma"
// parts = "(BLOCKS == 0) * SPLIT"
// sass  = ["LDS.128 in loop >= 8", "no LDS.32 in loop", "FFMA share in loop >= 65%", "ACQBULK", "PREEXIT", "no LDL", "no STL"]
// claim = "Copies without branches, between the products: no stage asks for alignment or edges."
//
// [params]
// BM = [64, 128, 32, 256]
// BN = [64, 128, 32, 256]
// WARPS_M = [2, 1, 4]
// STAGES = [3, 4, 6]
// BLOCKS = [0, 4, 8, 2, 6]
// SPLIT = [1, 4, 8, 2]
// OUTPUTS = [32, 64]
// BK = [8]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#include "batch.cuh"
#include "cluster.cuh"
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#define TURNING true
#define THREADS (BM * BN / OUTPUTS)
#include "small_tiles.cuh"

// A warp's outputs, and the grid that its lanes form.
#define WM (BM / WARPS_M)
#define WN (32 * OUTPUTS / WM)
#define LANES_M (WM / 8)
#define LANES_N (32 / LANES_M)
#define TN (OUTPUTS / 8)  // a thread has 8 x TN outputs
// The warps of an SM that registers must suffice for, and its blocks.
#define LEAST_WARPS (OUTPUTS == 32 ? THREADS == 32 || SPLIT > 1 ? 16 : 20 : THREADS == 256 ? 16 : 12)
#define LEAST_BLOCKS (LEAST_WARPS * 32 / THREADS)

static_assert(STAGES > 1 && (OUTPUTS == 32 || OUTPUTS == 64) && LANES_M * LANES_N == 32, "see `where`");

// What a thread copies of an operand's tiles, the same places of each stage. Of a K-major operand floats that have the same k: eight
// lanes read a sector, and all banks differ. Of the other, lanes read neighbours of a row: floats, or units of four if WIDE.
template <int EXTENT, bool K_MAJOR, bool WIDE>
struct Copies {
    static constexpr int each = !K_MAJOR && WIDE ? 4 : 1, places = EXTENT / each;            // of the row of a k
    static constexpr int beside = K_MAJOR ? 8 : places < THREADS ? places : THREADS;         // that the block copies at once,
    static constexpr int down = THREADS / beside, across = K_MAJOR ? 1 : places / beside;    // of as many rows
    static constexpr int count = places * BK < THREADS ? 1 : places * BK / THREADS;
    static_assert(BK == 8 && THREADS % beside == 0 && (count == 1 || places * BK % THREADS == 0), "a place is left out");
    const char* stage;  // where the next one begins: one addition for all copies
    const long long step;
    unsigned from[count];  // bytes from there
    int k;
    int floats[across];  // of a unit, that exist

    // `first` is where the operand's rows or columns of the tile begin, of which `extent` exist, at the first of the block's k.
    __device__ Copies(const float* first, int ld, int extent) : stage((const char*)first), step(4 * (K_MAJOR ? BK : (long long)BK * ld))
    {
        const int x = threadIdx.x % beside * each, y = threadIdx.x / beside;
        k = K_MAJOR ? x : y;
        #pragma unroll
        for (int i = 0; i < count; ++i) {
            const int right = x + i % across * beside * each;
            from[i] = 4 * (K_MAJOR ? (unsigned)min(y + i * down, extent - 1) * ld + x
                                   : (unsigned)(y + i / across * down) * ld + (each > 1 ? right : min(right, extent - 1)));
            floats[i % across] = min(max(extent - right, 0), each);
        }
    }

    // Start copying the next stage, which has `left` k. All at once: ptxas puts three loads that do nothing before each group of copies.
    __device__ void copy(Tile<EXTENT, K_MAJOR>& tile, int left)
    {
        const int x = threadIdx.x % beside * each, y = threadIdx.x / beside;
        #pragma unroll
        for (int i = 0; i < count; ++i) {
            const int m = i / across * down;
            const auto source = (const float*)(stage + from[i]);
            if (K_MAJOR) cp_async4(&tile.at[x][y + i * down], source, k < left);
            else if (each == 1) cp_async4(&tile.at[y + m][x + i % across * beside], source, k + m < left);
            else if (places * BK >= THREADS || y < BK)
                cp_async16_first(&tile.at[y + m][x + i % across * beside * 4], source, k + m < left ? 4 * floats[i % across] : 0);
        }
        stage += step;
    }
};

struct Stage {
    Tile<BM, !TRANSA> a;
    Tile<BN, TRANSB> b;
};

// Where a thread's first output is in the tile, and its warp's.
struct Place {
    int m, n, warp_m, warp_n;
};
__device__ inline Place place_of(int thread)
{
    const int warp = thread / 32, lane = thread % 32;
    const int of_eight = lane & 4 | lane % 2 * 2 | lane / 8 % 2, of_four = lane / 2 % 2 | lane / 16 * 2;
    const int warp_m = warp % WARPS_M * WM, warp_n = warp / WARPS_M * WN;
    return {warp_m + (LANES_M == 8 ? of_eight : of_four) * 4, warp_n + (LANES_M == 8 ? of_four : of_eight) * 4, warp_m, warp_n};
}

// Read a thread's fragments of one k. (m, n) is its first output.
__device__ inline void read(const Stage& stage, int k, int m, int n, float (&a)[8], float (&b)[TN])
{
    #pragma unroll
    for (int i = 0; i < 8; i += 4) *(float4*)&a[i] = *(const float4*)&stage.a.at[k][m + i * LANES_M];
    #pragma unroll
    for (int j = 0; j < TN; j += 4) *(float4*)&b[j] = *(const float4*)&stage.b.at[k][n + j * LANES_N];
}

// Add the products of one k.
__device__ inline void multiply_one(const float (&a)[8], const float (&b)[TN], float (&sum)[8][TN])
{
    #pragma unroll
    for (int i = 0; i < 8; ++i)
        #pragma unroll
        for (int j = 0; j < TN; ++j) {
            const int at = i % 2 ? TN - 1 - j : j;  // back and forth: b[at] is used again
            sum[i][at] += a[i] * b[at];
        }
}

// Start copying a stage that spans 4 GB or more: offsets of 32 bits would not do, so addresses are computed anew.
template <int EXTENT, bool K_MAJOR>
__device__ inline void copy_far(Tile<EXTENT, K_MAJOR>& tile, const float* first, int ld, int extent, int left)
{
    #pragma unroll 1
    for (int i = threadIdx.x; i < EXTENT * BK; i += THREADS) {
        const int k = K_MAJOR ? i % BK : i / EXTENT, x = K_MAJOR ? i / BK : i % EXTENT;
        cp_async4(&tile.at[k][x], first + (K_MAJOR ? x * (long long)ld + k : k * (long long)ld + x), k < left && x < extent);
    }
}

// Add the products of `left` k to `sum`, as `multiply`, one stage after the other.
__device__ inline void multiply_far(float* memory, const float* a_first, int lda, int rows, const float* b_first, int ldb, int columns,
                                    int left, int m, int n, float (&sum)[8][TN])
{
    Stage& stage = *(Stage*)memory;
    for (; left > 0; left -= BK) {
        copy_far(stage.a, a_first, lda, rows, left);
        copy_far(stage.b, b_first, ldb, columns, left);
        a_first += TRANSA ? BK * (long long)lda : BK;
        b_first += TRANSB ? BK : BK * (long long)ldb;
        cp_async_commit_group();
        cp_async_wait_group<0>();
        __syncthreads();  // everyone's copies have landed
        #pragma unroll 1
        for (int k = 0; k < BK; ++k) {
            float a[8], b[TN];
            read(stage, k, m, n, a, b);
            multiply_one(a, b, sum);
        }
        __syncthreads();  // everyone has read them
    }
}

// Add the products of `left` k to `sum`. `a_first` and `b_first` are where the tile's rows of A and columns of B begin, of which `rows`
// and `columns` exist. (m, n) is the thread's first output. Without WIDE the operands may begin anywhere.
template <bool WIDE>
__device__ inline void multiply(float* memory, const float* a_first, int lda, int rows, const float* b_first, int ldb, int columns,
                                int left, int m, int n, float (&sum)[8][TN])
{
    // Stages lie one after the other, each with both tiles, so that one offset leads to all of a stage.
    constexpr int bytes = sizeof(Stage);
    const auto stage_at = [&](int offset) -> Stage& { return *(Stage*)((char*)memory + offset); };
    Copies<BM, !TRANSA, WIDE> of_a(a_first, lda, rows);
    Copies<BN, TRANSB, WIDE> of_b(b_first, ldb, columns);
    #pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        of_a.copy(stage_at(i * bytes).a, left - i * BK);
        of_b.copy(stage_at(i * bytes).b, left - i * BK);
        cp_async_commit_group();
    }
    float a[2][8], b[2][TN];  // fragments of one k, and of the next
    cp_async_wait_group<STAGES - 2>();
    __syncthreads();  // all copies of the first stage have landed
    read(stage_at(0), 0, m, n, a[0], b[0]);
    int now = 0, free = (STAGES - 1) * bytes;
    #pragma unroll 1
    for (; left > 0; left -= BK) {
        const int next = now + bytes == STAGES * bytes ? 0 : now + bytes, beyond = left - (STAGES - 1) * BK;
        #pragma unroll  // the index of a fragment must be a constant: registers cannot be indexed
        for (int k = 0; k < BK; ++k) {
            if (k + 1 < BK) {
                read(stage_at(now), k + 1, m, n, a[(k + 1) % 2], b[(k + 1) % 2]);
                if (k == 1) of_a.copy(stage_at(free).a, beyond);
                if (k == 3) of_b.copy(stage_at(free).b, beyond);
            } else {
                cp_async_commit_group();
                cp_async_wait_group<STAGES - 2>();
                __syncthreads();  // everyone's copies of the next stage have landed, and this one has been read
                read(stage_at(next), 0, m, n, a[0], b[0]);  // after the last stage: zeros, which nobody multiplies
            }
            multiply_one(a[k % 2], b[k % 2], sum);
        }
        free = now, now = next;
    }
    cp_async_wait_group<0>();
}

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
    TAKE_PRODUCT(A, B, C, M, N, K, lda, ldb, ldc);
    const unsigned tiles_m = (M + BM - 1u) / BM, tile = TILE_OF_MATRIX(tiles_m * ((N + BN - 1u) / BN));
    const unsigned row = tile % tiles_m * BM, col = tile / tiles_m * BN;
    const Share share = share_of((K - 1) / BK + 1, blockIdx.y, gridDim.y);
    const int begin = share.begin * BK;
    const int left = int(min((unsigned)K, share.end * (unsigned)BK)) - begin;  // the product may pass 2^31
    const float* a_first = A + (TRANSA ? row + (long long)begin * lda : (long long)row * lda + begin);
    const float* b_first = B + (TRANSB ? (long long)col * ldb + begin : col + (long long)begin * ldb);
    const Place own = place_of(threadIdx.x);
    float sum[8][TN] = {};

    wait_for_prerequisites();
    const bool near = max((TRANSA ? BK : BM) * (long long)lda, (TRANSB ? BN : BK) * (long long)ldb) < 1 << 30;
    if (!near)
        multiply_far(memory, a_first, lda, M - row, b_first, ldb, N - col, left, own.m, own.n, sum);
    else if (OUTPUTS == 32 && TRANSA && !TRANSB && aligned16(A, lda) && aligned16(B, ldb))
        multiply<true>(memory, a_first, lda, M - row, b_first, ldb, N - col, left, own.m, own.n, sum);
    else
        multiply<false>(memory, a_first, lda, M - row, b_first, ldb, N - col, left, own.m, own.n, sum);

    launch_dependents();  // not before: the next kernel's blocks would crowd where there is room now
    __syncthreads();      // all copies, of zeros too, have landed
    int thread = threadIdx.x;
    if (OUTPUTS == 64) asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));  // again: no register is left to keep places in
    const auto [m, n, warp_m, warp_n] = place_of(thread);
    const auto staged = (Staged<4, true>*)memory;  // pairs of sums swapped, for the registers' sake: see 33's notes
    #pragma unroll
    for (int i = 0; i < 8; ++i)
        #pragma unroll
        for (int j = 0; j < TN; j += 4) {
            *(float4*)&staged->at[m + i / 4 * LANES_M * 4 + i % 4][n + j * LANES_N] =
                make_float4(sum[i][j + 1], sum[i][j], sum[i][j + 3], sum[i][j + 2]);
        }
    float* corner = C + (long long)row * ldc + col;
    if (SPLIT == 1 && gridDim.y == 1) {
        staged->store_own<WM, WN>(corner, ldc, M - row, N - col, alpha, beta, MAKE_EPILOGUE(M, N, ldc), row, col, warp_m, warp_n);
        return;
    }
    __syncthreads();
    staged->store(corner, ldc, M - row, N - col, alpha, beta, workspace, blockIdx.x, blockIdx.y / SPLIT,
                  gridDim.y / SPLIT, MAKE_EPILOGUE(M, N, ldc), row, col);
}
