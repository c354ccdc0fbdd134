// float32 on tensor cores: six products of bf16, as exact as fp32
//
// A float has 24 significant bits and a bf16 has 8, with the same range. So a float is the sum of three bf16. Of the
// nine products of two such sums, six are enough for 24 bits, and the tensor cores do them at sixteen times the rate of
// the float32 units. What they truncate, the threads keep: bf16x6.cuh says how.
//
// The producers load floats, split them and write the parts to shared memory, swizzled as TMA would; whatever the
// alignment and the edges are, the consumers see whole tiles of bf16. Each consumer warpgroup has 128 rows in two
// passes over a stage, since the registers hold only one tensor core sum of 64 rows beside the sums of the threads.
//
// /// kernel
// entry = "matmul"
// after = "28_3xtf32"
// dtype = "bf16x6"
// min_arch = "sm_90a"
// block = "384"
// tile  = ["256", "128"]
// grid  = "SMS"
// shared = "STAGES * (73728 + 16)"
// loads = "256 + 128"
// sass  = ["HGMMA in loop == 24", "F2FP.BF16.F32.PACK_AB >= 144", "no LDL", "no STL"]
// claim = "Six tensor core products give a float32 product's accuracy, and no operand but floats is ever in global memory."
// predict = ["conflicts == 0"]
//
// [params]
// STAGES = [3, 2]
// GROUP = [8, 1, 2, 4]
// ///

#include "bf16x6.cuh"
#include "epilogue.cuh"
#include "raster.cuh"
#include "stage16.cuh"

#define BM 256
#define BN 128
#define BK PART_K
#define CONSUMERS 256
#define PRODUCERS 128
#define BATCH 8  // loads that a producer has under way

typedef Parts<BM, BN> Tile;

// Write the parts of four neighbours to column `column` of row r of a matrix with rows of 64, and to the same place of
// the matrices `apart` elements further on.
__device__ inline void store_parts(Bf16* to, int apart, int r, int column, float4 v)
{
    const Words words = split(v);
    to += 64 * r + (column ^ r % 8 * 8);
    #pragma unroll
    for (int p = 0; p < PARTS; ++p) *(uint2*)(to + p * apart) = words.part[p];
}

// The producers' part of the kernel. With QUADS, each four neighbours are aligned and exist all or not at all.
template <bool QUADS, class PlaceOf>
__device__ inline void produce(const float* A, const float* B, int M, int N, int K, int lda, int ldb,
                               Tile* stages, Mbarrier* full, Mbarrier* empty, unsigned tiles, PlaceOf place_of)
{
    const int lane = threadIdx.x % 32, loader = threadIdx.x / 32 - CONSUMERS / 32;
    // Of A, a lane loads four k of a row of the upper or of the lower half; of B, four columns of a row. So 16 lanes
    // write to all banks at once.
    const int half = lane / 8 % 2, k_of = lane % 8 * 4, n_of = 4 * lane;
    const auto row_a = [&](int j) { return 8 * j + 2 * loader + lane / 16; };
    const auto row_b = [&](int j) { return 4 * j + loader; };
    const auto load = [](const float* p, int count) {
        if (QUADS) return count > 0 ? *(const float4*)p : float4{};
        return load4(p, count);
    };
    const auto load_a = [&](TileIndex at, int k, int j) {
        const unsigned r = at.row + BM / 2 * half + row_a(j);
        return load(A + (long long)r * lda + k + k_of, r < M ? K - k - k_of : 0);
    };
    const auto load_b = [&](TileIndex at, int k, int j) {
        const int r = k + row_b(j);
        return load(B + (long long)r * ldb + at.col + n_of, r < K ? N - (int)at.col - n_of : 0);
    };
    const auto store_a = [&](Tile& to, int j, float4 v) {
        store_parts(to.a[0][0], BM / 2 * 2 * BK, row_a(j), BK * half + k_of, v);
    };
    const auto store_b = [&](Tile& to, int j, float4 v) {
        store_parts(to.b[0][n_of / 64][0], BN * BK, row_b(j), n_of % 64, v);
    };

    int stage = 0, parity = 1;  // all stages are empty: the first waits end at once
    unsigned tile = blockIdx.x;
    TileIndex at = place_of(tile);
    float4 v[BATCH];
    #pragma unroll
    for (int j = 0; j < (QUADS ? BATCH : 0); ++j) v[j] = load_a(at, 0, j);
    for (int k = 0; tile < tiles;) {
        mbarrier_wait(empty + stage, parity);
        Tile& to = stages[stage];
        if (QUADS) {  // each register is loaded again as soon as it has been split: loads are always under way
            #pragma unroll
            for (int j = 0; j < BATCH; ++j) {
                store_a(to, j, v[j]);
                v[j] = load_a(at, k, BATCH + j);
            }
            #pragma unroll
            for (int j = 0; j < BATCH; ++j) {
                store_a(to, BATCH + j, v[j]);
                v[j] = load_b(at, k, j);
            }
        } else {
            #pragma unroll 1
            for (int j = 0; j < 2 * BATCH; ++j) store_a(to, j, load_a(at, k, j));
            #pragma unroll 1
            for (int j = 0; j < BATCH; ++j) store_b(to, j, load_b(at, k, j));
        }
        k += BK;
        if (k >= K) {
            k = 0, tile += gridDim.x;
            if (tile < tiles) at = place_of(tile);
        }
        #pragma unroll
        for (int j = 0; j < (QUADS ? BATCH : 0); ++j) {
            store_b(to, j, v[j]);
            if (tile < tiles) v[j] = load_a(at, k, j);
        }
        fence_proxy_async();
        mbarrier_arrive(full + stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 1)
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const auto stages = (Tile*)memory;
    const auto full = (Mbarrier*)(stages + STAGES), empty = full + STAGES;
    const int self = threadIdx.x, lane = self % 32, warp = __shfl_sync(~0u, self / 32, 0);  // uniform in a warp

    const unsigned tiles_m = (M + BM - 1u) / BM, tiles_n = (N + BN - 1u) / BN, tiles = tiles_m * tiles_n;
    const auto place_of = [&](unsigned tile) {
        const auto [row, col] = grouped_raster(tile, tiles_m, tiles_n, GROUP);
        return TileIndex{row * BM, col * BN};
    };
    if (blockIdx.x >= tiles) return;  // more SMs than tiles
    if (self < STAGES) mbarrier_init(full + self, PRODUCERS), mbarrier_init(empty + self, CONSUMERS / 128);
    __syncthreads();

    if (self >= CONSUMERS) {
        setmaxnreg_dec<72>();  // the consumers take over the rest: 504 for the three warpgroups, as launched
        if (aligned16(A, lda) && aligned16(B, ldb) && K % 4 == 0 && N % 4 == 0)
            produce<true>(A, B, M, N, K, lda, ldb, stages, full, empty, tiles, place_of);
        else
            produce<false>(A, B, M, N, K, lda, ldb, stages, full, empty, tiles, place_of);
        return;
    }

    setmaxnreg_inc<216>();
    const int half = warp / 4;
    int stage = 0, parity = 0;
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const auto [tile_row, col] = place_of(tile);
        float sum[2][BN / 2] = {};
        #pragma unroll 1
        for (int left = K; left > 0; left -= BK) {
            mbarrier_wait(full + stage, parity);
            #pragma unroll
            for (int pass = 0; pass < 2; ++pass) {
                float part[BN / 2];
                wgmma_fence();
                #pragma unroll
                for (int k = 0; k < BK; k += 16)
                    multiply(part, stages[stage], 64 * pass, BK * half + k, k, k > 0);
                wgmma_commit_group();
                wgmma_wait_all(part);
                #pragma unroll
                for (int i = 0; i < BN / 2; ++i) sum[pass][i] += part[i];
            }
            consumer_release<1>(empty + stage, self, warp);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }

        store_sums(sum, tile_row + BM / 2 * half + 16 * (warp % 4) + lane / 4, col + lane % 4 * 2, A, B, C, M, N, K,
                   lda, ldb, ldc, alpha, beta, MAKE_EPILOGUE(M, N, ldc));
    }
}
