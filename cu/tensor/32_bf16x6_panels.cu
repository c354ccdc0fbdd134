// float32 on tensor cores, split once: panels in global memory
//
// In rung 31 every block splits the floats of its tiles, so each is split as often as there are tiles beside it, and
// the producers are what the tensor cores wait for. Here all blocks first split A and B once, into a workspace, and
// wait for one another. A stage is then one contiguous piece of it, in the order and with the swizzle that shared
// memory wants: two bulk copies of one thread fill it, whatever layout, alignment and edges the matrices have.
//
// That costs 10 bytes of traffic an element, and a workspace 1.5 times as large as A and B. Blocks that wait for each
// other must run at the same time: the launch is cooperative.
//
// /// kernel
// entry = "matmul"
// after = "31_bf16x6"
// dtype = "bf16x6"
// min_arch = "sm_90a"
// block = "384"
// tile  = ["BM", "BN"]
// grid  = "SMS"
// where = ["BM > 64 or BN == 64", "768 <= STAGES * (BM + BN) * (1 + 64 // BM) <= 1152"]
// shared = "STAGES * (192 * (1 + 64 // BM) * (BM + BN) + 16) + 256 * BN * (64 // BM)"
// cooperative = true
// workspace = "128 + 6 * ((M + BM - 1) // BM * BM + (N + BN - 1) // BN * BN) * ((K + 63) // 64 * 64)"
// loads = "BM + BN"
// sass  = ["HGMMA in loop >= 12", "UBLKCP", "no LDL", "no STL"]
// claim = "Each element is split once, not once a tile: nothing but products and additions beside the tensor cores."
// predict = ["conflicts == 0"]
//
// [params]
// BM = [256, 128, 64]
// BN = [128, 64]
// STAGES = [3, 4, 6]
// GROUP = [8, 4]
// ///

#include "bf16x6.cuh"
#include "grid_sync.cuh"
#include "raster.cuh"
#include "stage16.cuh"

#define CONSUMERS 256
#define PRODUCERS 128
#define THREADS (CONSUMERS + PRODUCERS)
#define UNIT 4  // times eight elements that a lane splits at a time

// Two warpgroups share a tile: each has half of its rows, in passes of 64. If there are only 64, each has half of the k.
#define SHARE_K (BM == 64)
#define PASSES (SHARE_K ? 1 : BM / 128)
#define BK (SHARE_K ? 2 * PART_K : PART_K)

typedef Parts<BM, BN, BK> Tile;

// Copy `bytes` from global to shared memory by one bulk copy; they count at the barrier.
__device__ inline void bulk_load(void* to, const void* from, int bytes, Mbarrier* b)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(b)) : "memory");
}

// Order writes to global memory by threads before reads of the same by bulk copies.
__device__ inline void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Eight neighbours of a row, of which `count` exist; `quads` says that p is aligned to 16 bytes.
struct Eight { float4 low, high; };
__device__ inline Eight load8(const float* p, int count, bool quads)
{
    if (quads && count >= 8) return {__ldg((const float4*)p), __ldg((const float4*)p + 1)};
    return {load4(p, count), load4(p + 4, count - 4)};
}

__device__ inline void store_parts(Bf16* to, int apart, Eight v)
{
    const Words low = split(v.low), high = split(v.high);
    #pragma unroll
    for (int p = 0; p < PARTS; ++p)
        *(uint4*)(to + p * (long long)apart) =
            make_uint4(low.part[p].x, low.part[p].y, high.part[p].x, high.part[p].y);
}

// Split A and B into panels. A warp takes 32 rows and 32 k of A at a time, or 16 k and 64 columns of B.
__device__ inline void split_all(const float* A, const float* B, int M, int N, int K, int lda, int ldb, Bf16* panels_a,
                                 Bf16* panels_b, unsigned tiles_m, unsigned tiles_n, unsigned tiles_k)
{
    const int lane = threadIdx.x % 32;
    const unsigned warp = (blockIdx.x * THREADS + threadIdx.x) / 32, warps = gridDim.x * (THREADS / 32);
    const unsigned parts_k = tiles_k * (BK / 32), columns = tiles_n * (BN / 64);
    const unsigned units_a = tiles_m * (BM / 32) * parts_k, units = units_a + columns * parts_k * 2;
    const bool quads_a = aligned16(A, lda), quads_b = aligned16(B, ldb);
    for (unsigned unit = warp; unit < units; unit += warps) {
        Eight v[UNIT];
        if (unit < units_a) {
            const unsigned k = unit % parts_k * 32 + lane % 4 * 8, row = unit / parts_k * 32 + lane / 4;
            #pragma unroll
            for (int j = 0; j < UNIT; ++j) {
                const unsigned r = row + 8 * j;
                v[j] = load8(A + (long long)r * lda + k, r < M ? K - (int)k : 0, quads_a);
            }
            Bf16* image = panels_a + (row / BM * (long long)tiles_k + k / BK) * (PARTS * BM * BK);
            #pragma unroll
            for (int j = 0; j < UNIT; ++j) {
                const unsigned r = (row + 8 * j) % BM, line = r % (BM * BK / 64), half = r / (BM * BK / 64);
                store_parts(image + 64 * line + ((BK * half + k % BK) ^ r % 8 * 8), BM * BK, v[j]);
            }
        } else {
            const unsigned box = (unit - units_a) % columns, n = lane % 8 * 8;
            const unsigned k = (unit - units_a) / columns * 16 + lane / 8;
            #pragma unroll
            for (int j = 0; j < UNIT; ++j) {
                const unsigned r = k + 4 * j;
                v[j] = load8(B + (long long)r * ldb + box * 64 + n, r < K ? N - (int)(box * 64 + n) : 0, quads_b);
            }
            Bf16* image = panels_b + (box / (BN / 64) * (long long)tiles_k + k / BK) * (PARTS * BN * BK)
                          + box % (BN / 64) * (BK * 64);
            #pragma unroll
            for (int j = 0; j < UNIT; ++j) {
                const unsigned r = (k + 4 * j) % BK;
                store_parts(image + 64 * r + (n ^ r % 8 * 8), BN * BK, v[j]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta, unsigned* workspace)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const auto stages = (Tile*)memory;
    const auto exchange = (float4(*)[128])(stages + STAGES);  // the sums of a warpgroup, if they share k
    const auto full = (Mbarrier*)(exchange + (SHARE_K ? BN / 8 : 0)), empty = full + STAGES;
    const int self = threadIdx.x, lane = self % 32, warp = __shfl_sync(~0u, self / 32, 0);  // uniform in a warp

    const unsigned tiles_m = (M + BM - 1u) / BM, tiles_n = (N + BN - 1u) / BN, tiles = tiles_m * tiles_n;
    const unsigned tiles_k = (K + BK - 1u) / BK;
    const auto panels_a = (Bf16*)(workspace + 32);
    const auto panels_b = panels_a + tiles_m * (long long)tiles_k * (PARTS * BM * BK);
    const auto place_of = [&](unsigned tile) { return grouped_raster(tile, tiles_m, tiles_n, GROUP); };

    if (self < STAGES) mbarrier_init(full + self, 1), mbarrier_init(empty + self, CONSUMERS / 128);
    if (self < STAGES) fence_mbarrier_init();
    split_all(A, B, M, N, K, lda, ldb, panels_a, panels_b, tiles_m, tiles_n, tiles_k);
    fence_proxy_async_global();
    __syncthreads();
    if (self == 0) {
        // Block 0 adds so much that all blocks together flip the highest bit and leave 0 below it: see rung 29.
        const unsigned before = atomic_add_release(workspace, blockIdx.x ? 1 : 0x80000000 - (gridDim.x - 1));
        while ((load_acquire(workspace) ^ before) >> 31 == 0) {}
    }
    __syncthreads();

    if (self >= CONSUMERS) {
        setmaxnreg_dec<24>();  // the consumers take over the rest
        if (self > CONSUMERS) return;
        fence_proxy_async_global();
        int stage = 0, parity = 1;  // all stages are empty: the first waits end at once
        for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const auto [row, col] = place_of(tile);
            const Bf16* a = panels_a + row * (long long)tiles_k * (PARTS * BM * BK);
            const Bf16* b = panels_b + col * (long long)tiles_k * (PARTS * BN * BK);
            for (unsigned k = 0; k < tiles_k; ++k) {
                mbarrier_wait(empty + stage, parity);
                mbarrier_arrive_expect_tx(full + stage, sizeof(Tile));
                bulk_load(stages[stage].a, a, sizeof stages[stage].a, full + stage);
                bulk_load(stages[stage].b, b, sizeof stages[stage].b, full + stage);
                a += PARTS * BM * BK, b += PARTS * BN * BK;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        }
        return;
    }

    setmaxnreg_inc<240>();
    const int half = warp / 4;
    int stage = 0, parity = 0;
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const auto [tile_row, tile_col] = place_of(tile);
        float sum[PASSES][BN / 2] = {};
        #pragma unroll 1
        for (unsigned left = tiles_k; left > 0; --left) {
            mbarrier_wait(full + stage, parity);
            #pragma unroll
            for (int pass = 0; pass < PASSES; ++pass) {
                float part[BN / 2];
                wgmma_fence();
                #pragma unroll
                for (int k = 0; k < PART_K; k += 16)
                    multiply(part, stages[stage], 64 * pass, PART_K * half + k, SHARE_K ? PART_K * half + k : k, k > 0);
                wgmma_commit_group();
                wgmma_wait_all(part);
                if (pass == PASSES - 1) consumer_release<1>(empty + stage, self, warp);
                #pragma unroll
                for (int i = 0; i < BN / 2; ++i) sum[pass][i] += part[i];
            }
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        if (SHARE_K) {
            named_barrier_sync<CONSUMERS>();  // what was exchanged for the last tile has been read
            #pragma unroll
            for (int i = 0; i < BN / 2; i += 4)
                if (half == 1) exchange[i / 4][self % 128] = *(float4*)(sum[0] + i);
            named_barrier_sync<CONSUMERS>();
            if (half == 1) continue;
            #pragma unroll
            for (int i = 0; i < BN / 2; i += 4) {
                const float4 v = exchange[i / 4][self];
                sum[0][i] += v.x, sum[0][i + 1] += v.y, sum[0][i + 2] += v.z, sum[0][i + 3] += v.w;
            }
        }
        const unsigned row = tile_row * BM + (SHARE_K ? 0 : BM / 2 * half) + 16 * (warp % 4) + lane / 4;
        store_sums(sum, row, tile_col * BN + lane % 4 * 2, A, B, C, M, N, K, lda, ldb, ldc, alpha, beta);
    }
}
