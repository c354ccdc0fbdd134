// wgmma: the tensor cores read their operands from shared memory
//
// mma.sync needs its operands in registers and computes 16 x 8 outputs at a time. On Hopper the 128 threads of
// a warpgroup start one product of 64 x BN outputs, whose operands the tensor cores read from shared memory.
// TMA puts them there: one thread asks for a box of a matrix and goes on. The box arrives swizzled, with zeros
// for what is outside the matrix, and an mbarrier counts its bytes. So hardly any instruction is left but the
// products.
//
// /// kernel
// entry = "matmul"
// after = "21_mma_sync"
// dtype = "bf16"
// min_arch = "sm_90a"
// block = "2 * BM"
// tile  = ["BM", "BN"]
// shared = "STAGES * (128 * (BM + BN) + 8)"
// loads = "BM + BN"
// sass  = ["HGMMA == 4", "HGMMA in loop == 4", "WARPGROUP.DEPBAR == 2", "UTMALDG in loop",
//          "no LDSM", "no HMMA", "no LDL", "no STL"]
// claim = "64 steps of k take four instructions, and the operands pass through no register."
// predict = ["seconds <= 0.8 of 21_mma_sync at N=4096"]
//
// [tensormaps]
// A = {box = ["BM", 64], swizzle = 128}
// B = {box = [64, 64], swizzle = 128}
//
// [params]
// BM = [128, 64]
// BN = [128, 256, 64]
// STAGES = [4]
// ///

#include "tma.cuh"
#include "wgmma.cuh"

#define BK 64             // 128 bytes: as wide as the swizzle
#define THREADS (2 * BM)  // a warpgroup for 64 rows

extern "C" __global__ void __launch_bounds__(THREADS)
                       matmul(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                              const Bf16* A, const Bf16* B, Bf16* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    auto As = (Bf16(*)[BM][BK])memory;
    auto Bs = (Bf16(*)[BN / 64][BK][64])(As + STAGES);  // boxes of 64 columns
    auto full = (Mbarrier*)(Bs + STAGES);

    const int self = threadIdx.x, warp = self / 32, lane = self % 32;
    const unsigned row = blockIdx.y * BM, col = blockIdx.x * BN;

    // A matrix that cannot have a tensor map is copied by all threads, and then all arrive.
    const bool map_for_a = aligned16(A, lda), map_for_b = aligned16(B, ldb);
    if (self < STAGES) mbarrier_init(full + self, map_for_a && map_for_b ? 1 : 1 + THREADS);
    fence_mbarrier_init();
    __syncthreads();  // the barriers exist

    const auto load = [&](int stage, int left) {  // the first BK of the `left` last columns of A and rows of B
        const int k = K - left;
        if (self == 0) {
            mbarrier_arrive_expect_tx(full + stage, (map_for_a ? sizeof *As : 0) + (map_for_b ? sizeof *Bs : 0));
            if (map_for_a) tma_load(As[stage], map_a, row, k, full + stage);
            if (map_for_b)
                for (int j = 0; j < BN / 64; ++j)
                    tma_load(Bs[stage][j], map_b, k, col + 64 * j, full + stage);
        }
        if (map_for_a && map_for_b) return;
        if (!map_for_a)
            copy_box_swizzled<BM, THREADS / 32, 8>(As[stage], A + (long long)row * lda + k, lda, M - row, left,
                                                   warp);
        if (!map_for_b)
            #pragma unroll 1
            for (int j = 0; j < BN / 64; ++j) {
                const int n = col + 64 * j;
                copy_box_swizzled<BK, THREADS / 32, 8>(Bs[stage][j], B + (long long)k * ldb + n, ldb, left, N - n,
                                                       warp);
            }
        fence_proxy_async();
        mbarrier_arrive(full + stage);
    };

    int ahead = K;  // k that are not loaded yet
    for (int stage = 0; stage < STAGES - 1; ++stage, ahead -= BK)
        if (ahead > 0) load(stage, ahead);

    float sum[BN / 2];
    int now = 0, parity = 0, next = STAGES - 1;
    for (int left = K; left > 0; left -= BK, ahead -= BK) {
        mbarrier_wait(full + now, parity);
        const Descriptor a = make_descriptor(As[now][self / 128 * 64], 0, 1024);
        const Descriptor b = make_descriptor(Bs[now], 8192, 1024);
        wgmma_fence();
        #pragma unroll
        for (int k = 0; k < BK; k += 16)
            wgmma(Bf16(), sum, advance_descriptor(a, 2 * k), advance_descriptor(b, 128 * k), left < K || k > 0);
        wgmma_commit_group();
        wgmma_wait_group<1>();  // the products of the last stage are done,
        __syncthreads();        // those of all warpgroups: it may be filled again
        if (ahead > 0) load(next, ahead);
        next = now;
        if (++now == STAGES) now = 0, parity ^= 1;
    }
    wgmma_wait_all(sum);

    const bool words = (unsigned long long)C % 4 == 0 && ldc % 2 == 0;
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        const unsigned r = row + 16 * warp + 8 * half + lane / 4;
        if (r >= M) continue;
        #pragma unroll
        for (int i = 2 * half; i < BN / 2; i += 4) {
            const unsigned s = col + i / 4 * 8 + lane % 4 * 2;
            store2(C + (long long)r * ldc + s, sum[i], sum[i + 1], N - (int)s, words, alpha, beta);
        }
    }
}
