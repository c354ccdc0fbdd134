// One stage of the rungs from 23 on that feed the tensor cores with 16-bit elements: BM rows of A and BN
// columns of B, 64 k of each, that is 128 bytes, as wide as the swizzle (the parameters are those of the rung
// that includes it).
#pragma once

#include "cluster.cuh"
#include "tma.cuh"

#ifndef ELEMENT
#define ELEMENT Bf16
#endif
#define BK 64               // of a stage
#define CONSUMERS (2 * BM)  // threads, a warpgroup for 64 rows; the producers follow them
#define PRODUCERS 128       // one would do; all of them copy a matrix that cannot have a map

struct Stage {
    ELEMENT a[BM][BK];
    ELEMENT b[BN / 64][BK][64];  // boxes of 64 columns

    // By one thread: A is on its way to here from (row, k), and at `full` B is expected, too.
    __device__ void fetch_a(const TensorMap& map_a, int row, int k, Mbarrier* full, bool has_a = true,
                            bool has_b = true)
    {
        mbarrier_arrive_expect_tx(full, (has_a ? sizeof a : 0) + (has_b ? sizeof b : 0));
        if (has_a) tma_load(a, map_a, row, k, full);
    }

    // B from (k, col). The BLOCKS of a cluster that share these columns fetch a part each, for all of them.
    template <int BLOCKS = 1>
    __device__ void fetch_b(const TensorMap& map_b, int k, int col, Mbarrier* full, int rank = 0)
    {
        #pragma unroll
        for (int i = 0; i < BN / 64 / BLOCKS; ++i) {
            const int j = BN / 64 / BLOCKS * rank + i;
            if (BLOCKS == 1) tma_load(b[j], map_b, k, col + 64 * j, full);
            else tma_load_multicast((1 << BLOCKS) - 1, b[j], map_b, k, col + 64 * j, full);
        }
    }

    // What has a map.
    template <int BLOCKS = 1>
    __device__ void fetch(const TensorMap& map_a, const TensorMap& map_b, int row, int col, int k, Mbarrier* full,
                          bool has_a = true, bool has_b = true, int rank = 0)
    {
        fetch_a(map_a, row, k, full, has_a, has_b);
        if (has_b) fetch_b<BLOCKS>(map_b, k, col, full, rank);
    }

    // By four warps: the rest is copied.
    __device__ void copy(const ELEMENT* A, const ELEMENT* B, int row, int col, int k, int M, int N, int K,
                         int lda, int ldb, bool has_a, bool has_b)
    {
        const int warp = threadIdx.x / 32 % 4;
        if (!has_a) copy_box_swizzled<BM, 4, 16>(a, A + (long long)row * lda + k, lda, M - row, K - k, warp);
        if (!has_b)
            #pragma unroll 1
            for (int j = 0; j < BN / 64; ++j) {
                const int n = col + 64 * j;
                copy_box_swizzled<BK, 4, 16>(b[j], B + (long long)k * ldb + n, ldb, K - k, N - n, warp);
            }
        fence_proxy_async();
    }
};

// By one thread of the producers: the barriers of all stages, where `arrivals` say that one may be filled anew.
// What `begin` fetches into the first stage need not wait for the other barriers, nor for anybody to know of them:
// all wait for it longest. (H200: the first box was asked for 1,700 cycles after a block's begin; 2 to 3% less time
// for products of 10 us.)
template <class Begin>
__device__ inline void make_stage_barriers(Mbarrier* full, Mbarrier* empty, bool maps, int arrivals, Begin begin)
{
    const int fillers = maps ? 1 : 1 + PRODUCERS;
    mbarrier_init(full, fillers);
    fence_mbarrier_init();
    begin();
    #pragma unroll
    for (int i = 0; i < STAGES; ++i) {
        if (i > 0) mbarrier_init(full + i, fillers);
        mbarrier_init(empty + i, arrivals);
    }
    fence_mbarrier_init();
}

// By a warpgroup, whose products of a stage are done together: at its barrier, of all BLOCKS of the cluster.
template <int BLOCKS>
__device__ inline void release(Mbarrier* empty, int self, int warp)
{
    if (BLOCKS == 1 && self % 128 == 0) mbarrier_arrive(empty);
    if (BLOCKS > 1 && self % 32 == 0 && warp % 4 < BLOCKS) mbarrier_arrive_cluster(warp % 4, empty);
}

// By one thread of the producers, last: all stages have been released by all blocks. Until then a block must
// stay, for others arrive at its barriers.
__device__ inline void wait_for_all(Mbarrier* empty, int stage, int parity)
{
    for (int i = 0; i < STAGES; ++i) {
        mbarrier_wait(empty + stage, parity);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
}
