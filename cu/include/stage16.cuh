// One stage of the pipeline of rungs 22a to 29, whose elements have 16 bits: a tile of A and one of B in shared memory,
// and the barriers between the producers that fill it and the consumers that multiply it.
#pragma once

#include "cluster.cuh"
#include "tma.cuh"

// TILE_M rows of A and TILE_N columns of B. TILE_K elements are 128 bytes, which is as wide as the swizzle.
template <class T, int TILE_M, int TILE_N, int TILE_K>
struct Stage16 {
    static_assert(TILE_K * sizeof(T) == 128, "a row of a box is as wide as the swizzle");

    T a[TILE_M][TILE_K];
    T b[TILE_N / 64][TILE_K][64];  // boxes of 64 columns

    // Called by one thread: load A from (row, k), and let the phase of `full` wait for the bytes of A and B.
    __device__ void load_a(const TensorMap& map_a, int row, int k, Mbarrier* full, bool has_a = true,
                           bool has_b = true)
    {
        mbarrier_arrive_expect_tx(full, (has_a ? sizeof a : 0) + (has_b ? sizeof b : 0));
        if (has_a) tma_load(a, map_a, row, k, full);
    }

    // Load B from (k, col). Each of the BLOCKS blocks of a cluster loads a part of it, for all of them.
    template <int BLOCKS = 1>
    __device__ void load_b(const TensorMap& map_b, int k, int col, Mbarrier* full, int rank = 0)
    {
        #pragma unroll
        for (int i = 0; i < TILE_N / 64 / BLOCKS; ++i) {
            const int j = TILE_N / 64 / BLOCKS * rank + i;
            if (BLOCKS == 1) tma_load(b[j], map_b, k, col + 64 * j, full);
            else tma_load_multicast((1 << BLOCKS) - 1, b[j], map_b, k, col + 64 * j, full);
        }
    }

    // Load both; has_a and has_b say which of them has a tensor map.
    template <int BLOCKS = 1>
    __device__ void load(const TensorMap& map_a, const TensorMap& map_b, int row, int col, int k, Mbarrier* full,
                         bool has_a = true, bool has_b = true, int rank = 0)
    {
        load_a(map_a, row, k, full, has_a, has_b);
        if (has_b) load_b<BLOCKS>(map_b, k, col, full, rank);
    }

    // Called by the four warps of the producers: copy what has no tensor map.
    __device__ void copy(const T* A, const T* B, int row, int col, int k, int M, int N, int K, int lda, int ldb,
                         bool has_a, bool has_b)
    {
        const int warp = threadIdx.x / 32 % 4;
        if (!has_a) copy_box_swizzled<TILE_M, 4, 16>(a, A + (long long)row * lda + k, lda, M - row, K - k, warp);
        if (!has_b)
            #pragma unroll 1
            for (int j = 0; j < TILE_N / 64; ++j) {
                const int n = col + 64 * j;
                copy_box_swizzled<TILE_K, 4, 16>(b[j], B + (long long)k * ldb + n, ldb, K - k, N - n, warp);
            }
        fence_proxy_async();
    }
};

// Called by one thread of the producers: initialise the barriers of all stages. `fillers` arrivals say that a stage is
// full, `readers` that it is empty. load_first() loads into the first stage, for which only one barrier is needed:
// all wait longest for it. (H200: else the first box is asked for 1,700 cycles after a block begins; 2 to 3% less time
// for products of 10 us.)
template <int NUM_STAGES, class LoadFirst>
__device__ inline void init_stage_barriers(Mbarrier* full, Mbarrier* empty, int fillers, int readers,
                                           LoadFirst load_first)
{
    mbarrier_init(full, fillers);
    fence_mbarrier_init();
    load_first();
    #pragma unroll
    for (int i = 0; i < NUM_STAGES; ++i) {
        if (i > 0) mbarrier_init(full + i, fillers);
        mbarrier_init(empty + i, readers);
    }
    fence_mbarrier_init();
}

// Called by a warpgroup whose products of a stage are done: arrive at its empty barrier once, in all BLOCKS blocks of
// the cluster.
template <int BLOCKS>
__device__ inline void consumer_release(Mbarrier* empty, int self, int warp)
{
    if (BLOCKS == 1 && self % 128 == 0) mbarrier_arrive(empty);
    if (BLOCKS > 1 && self % 32 == 0 && warp % 4 < BLOCKS) mbarrier_arrive_cluster(empty, warp % 4);
}

// Called by one thread of the producers, at the end: wait until all blocks of the cluster have released all stages.
// Until then a block must not exit, because others arrive at its barriers.
template <int NUM_STAGES>
__device__ inline void producer_tail(Mbarrier* empty, int stage, int parity)
{
    for (int i = 0; i < NUM_STAGES; ++i) {
        mbarrier_wait(empty + stage, parity);
        if (++stage == NUM_STAGES) stage = 0, parity ^= 1;
    }
}
