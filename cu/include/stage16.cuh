// One stage of the pipeline of rungs 22a to 29 and of 35, whose elements have 16 bits: a tile of A and one of B in
// shared memory, and the barriers between the producers that fill it and the consumers that multiply it.
#pragma once

#include "cluster.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

// One operand of a product that may be computed from either side: its map, its matrix, and how many rows of op(A) or
// columns of op(B) it has.
template <class T>
struct Side {
    const TensorMap* map;
    const T* from;
    int ld, extent;
    bool mapped;
};

// TILE_M rows of op(A) and TILE_N columns of op(B). TILE_K elements are 128 bytes, which is as wide as the swizzle. A
// tile whose rows run along k (A, and B if it is stored transposed) is K-major and one box; the other kind is MN-major,
// and has a box for 64 rows or columns. wgmma reads both kinds. B's boxes may have 32 columns, with the 64-byte swizzle.
// (H200: for tiles of 32 columns or fewer 2% less time. Three boxes of 32 for 96 columns took 3% more than two of 64.)
// With TURNS rows of a K-major tile that cannot be divided among the blocks of a cluster are loaded whole, in turns.
template <class T, int TILE_M, int TILE_N, int TILE_K, bool A_MN = false, bool B_MN = true, int B_WIDE = 64,
          bool TURNS = false>
struct Stage16 {
    static_assert(TILE_K * sizeof(T) == 128, "a row of a box is as wide as the swizzle");

    static constexpr int B_BOXES = (TILE_N + B_WIDE - 1) / B_WIDE;  // the last one may reach beyond the tile

    T a[TILE_M][TILE_K];                                      // MN-major: for every 64 rows of op(A) a box of TILE_K rows
    T b[B_MN ? B_BOXES * TILE_K * B_WIDE / 64 : TILE_N][64];  // MN-major: boxes of TILE_K rows; K-major: TILE_N rows

    // Start the products of the stage for 64 rows from row m of the tile on: sum = (accumulate ? sum : 0) + a * b.
    template <int COUNT>
    __device__ void multiply(float (&sum)[COUNT], int m, bool accumulate) const
    {
        multiply(reinterpret_cast<float (&)[1][COUNT]>(sum), m, accumulate);
    }

    // The same for several times 64 rows.
    template <int TIMES, int COUNT>
    __device__ void multiply(float (&sums)[TIMES][COUNT], int m, bool accumulate) const
    {
        constexpr int WIDE = B_MN ? B_WIDE : 64;  // 128 bytes of shared memory, or half of them
        const Descriptor a_first = make_descriptor(a[m], 0, 1024);
        const Descriptor b_first = make_descriptor(b, B_MN * TILE_K * WIDE * 2, 16 * WIDE, 2 * WIDE);
        wgmma_fence();
        #pragma unroll
        for (int k = 0; k < TILE_K; k += 16)
            #pragma unroll
            for (int i = 0; i < TIMES; ++i)
                wgmma<A_MN, B_MN>(T(), sums[i], advance_descriptor(a_first, 8192 * i + (A_MN ? 128 : 2) * k),
                                  advance_descriptor(b_first, (B_MN ? 2 * WIDE : 2) * k), accumulate || k > 0);
        wgmma_commit_group();
    }

    // Called by one thread: load A from (row, k), and let the phase of `full` wait for the bytes of A and B.
    template <int BLOCKS = 1, int APART = 1, class Map>
    __device__ void load_a(const Map& map_a, int row, int k, Mbarrier* full, bool has_a = true, bool has_b = true,
                           int rank = 0)
    {
        mbarrier_arrive_expect_tx(full, (has_a ? sizeof a : 0) + (has_b ? sizeof b : 0));
        if (has_a) load_part<BLOCKS, APART, A_MN, TILE_M, 64>(a, map_a, row, k, full, rank);
    }

    // Load B from (k, col).
    template <int BLOCKS = 1, class Map>
    __device__ void load_b(const Map& map_b, int k, int col, Mbarrier* full, int rank = 0)
    {
        load_part<BLOCKS, 1, B_MN, TILE_N, B_WIDE>(b, map_b, col, k, full, rank);
    }

    // Load both; has_a and has_b say which of them has a tensor map. SHARE_B neighbours of a cluster have the same B, and
    // SHARE_A blocks the same A, which are SHARE_B apart.
    template <int SHARE_B = 1, int SHARE_A = 1, class Map>
    __device__ void load(const Map& map_a, const Map& map_b, int row, int col, int k, Mbarrier* full,
                         bool has_a = true, bool has_b = true, int rank = 0)
    {
        load_a<SHARE_A, SHARE_B>(map_a, row, k, full, has_a, has_b, rank);
        if (has_b) load_b<SHARE_B>(map_b, k, col, full, rank);
    }

    // Load the first stage, in two parts. Before the blocks of the cluster have begun: what no other block has.
    template <int SHARE_B = 1, int SHARE_A = 1, class Map>
    __device__ void load_own(const Map& map_a, const Map& map_b, int row, int col, int k, Mbarrier* full)
    {
        if (SHARE_A == 1) load_a(map_a, row, k, full);
        if (SHARE_A * SHARE_B == 1) load_b(map_b, k, col, full);
    }

    // After they have: the rest.
    template <int SHARE_B = 1, int SHARE_A = 1, class Map>
    __device__ void load_rest(const Map& map_a, const Map& map_b, int row, int col, int k, Mbarrier* full, int rank)
    {
        if (SHARE_A > 1) load_a<SHARE_A, SHARE_B>(map_a, row, k, full, true, true, rank);
        if (SHARE_A * SHARE_B > 1) load_b<SHARE_B>(map_b, k, col, full, rank);
    }

    // Each of BLOCKS blocks of a cluster, APART from one another, loads a part of a tile of EXTENT rows or columns, for all
    // of them: rows of a K-major tile, boxes of the other kind, or a part of each box's k where the boxes cannot be divided.
    // With TURNS rows that cannot be divided (168 among four) are loaded whole, by another block for each stage.
    template <int BLOCKS, int APART, bool MN, int EXTENT, int WIDE, class Map>
    __device__ static void load_part(T (*to)[64], const Map& map, int first, int k, Mbarrier* full, int rank)
    {
        constexpr int BOXES = (EXTENT + WIDE - 1) / WIDE;
        constexpr bool WHOLE = MN && BOXES % BLOCKS == 0;
        constexpr int LINES = MN ? TILE_K : EXTENT;  // of a box, or of all
        constexpr bool IN_TURN = !WHOLE && LINES % (8 * BLOCKS) > 0;
        static_assert(!IN_TURN || TURNS && !MN, "a part begins where the swizzle does");
        constexpr int EACH = IN_TURN ? 0 : WHOLE ? BOXES / BLOCKS : LINES / BLOCKS;
        if (IN_TURN && k / TILE_K % BLOCKS != sharer<BLOCKS, APART>(rank)) return;
        #pragma unroll
        for (int i = 0; i < (!MN ? 1 : WHOLE ? EACH : BOXES); ++i) {
            const int part = EACH * sharer<BLOCKS, APART>(rank), of_k = WHOLE ? 0 : part;
            const int box = WHOLE ? part + i : i;
            const auto at = to[MN ? (box * TILE_K + of_k) * WIDE / 64 : part];
            const int y = MN ? k + of_k : first + part, x = MN ? first + box * WIDE : k;
            tma_load_shared<BLOCKS, APART>(rank, at, map, y, x, full);
        }
    }

    // Called by the four warps of the producers: copy what has no tensor map.
    __device__ void copy(const T* A, const T* B, int row, int col, int k, int M, int N, int K, int lda, int ldb,
                         bool has_a, bool has_b)
    {
        const int warp = threadIdx.x / 32 % 4;
        if (!has_a && !A_MN)
            copy_box_swizzled<TILE_M, 4, 16>(a, A + (long long)row * lda + k, lda, M - row, K - k, warp);
        if (!has_a && A_MN)
            #pragma unroll 1
            for (int i = 0; i < TILE_M; i += 64) {
                const int m = row + i;
                copy_box_swizzled<TILE_K, 4, 16>(a[i], A + (long long)k * lda + m, lda, K - k, M - m, warp);
            }
        if (!has_b && !B_MN)
            copy_box_swizzled<TILE_N, 4, TILE_N % 32 ? 2 : TILE_N % 64 ? 8 : 16>(b, B + (long long)col * ldb + k, ldb,
                                                                                  N - col, K - k, warp);
        if (!has_b && B_MN)
            #pragma unroll 1
            for (int j = 0; j < B_BOXES; ++j) {
                const int n = col + B_WIDE * j;
                copy_box_swizzled<TILE_K, 4, B_WIDE / 4, 2 * B_WIDE>(b[B_WIDE * j], B + (long long)k * ldb + n, ldb, K - k,
                                                                     N - n, warp);
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
    #pragma unroll
    for (int block = 0; block < BLOCKS; block += 4)
        if (BLOCKS > 1 && self % 32 == 0 && block + warp % 4 < BLOCKS) mbarrier_arrive_cluster(empty, block + warp % 4);
}
