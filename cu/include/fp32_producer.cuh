// The producer warpgroup of rungs 16, 19 and 20: it fills stage after stage with a tile of op(A) and one of op(B). The
// consumers read rows and columns that lie side by side for each k. Where k runs along the rows of the matrix, in A and
// in a B that is stored transposed, the tile has to be transposed. TMA cannot do that, so threads copy it float by
// float. The other kind lies as it is needed: TMA loads it if it has a tensor map. (Copied by threads 16 bytes at a
// time: up to 2% slower. A bulk copy for each row, which needs no map: 12% slower, since a warp issues them one by one.)
// With A_IN_LINES or B_IN_LINES such an operand is left as it lies instead (fp32_lines.cuh, which the kernel includes first).
#pragma once

#include "tma.cuh"

#ifndef A_IN_LINES
#define A_IN_LINES 0
#endif
#ifndef B_IN_LINES
#define B_IN_LINES 0
#endif

constexpr int PRODUCERS = 128;  // threads
constexpr int PAD = 4;          // floats after a transposed row: as few as keep 16-byte alignment

// The tensor maps that a kernel takes, as the first of its parameters and as arguments of load().
#define MAPPED_A (TRANSA || A_IN_LINES)
#define MAPPED_B (!TRANSB || B_IN_LINES)
#if MAPPED_A && MAPPED_B
#define MAP_PARAMETERS const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
#define MAP_A map_a
#define MAP_B map_b
#elif MAPPED_A
#define MAP_PARAMETERS const __grid_constant__ TensorMap map_a,
#define MAP_A map_a
#define MAP_B map_a
#elif MAPPED_B
#define MAP_PARAMETERS const __grid_constant__ TensorMap map_b,
#define MAP_A map_b
#define MAP_B map_b
#else
#define MAP_PARAMETERS
#define MAP_A TensorMap()
#define MAP_B TensorMap()
#endif
#define MAPS MAP_A, MAP_B

// A tile of one operand: SIDE rows of op(A) or columns of op(B), for each of TILE_K k.
template <int SIDE, int TILE_K, bool ALONG_K, class Map>
struct Fp32Tile {
    static constexpr int PITCH = SIDE + (ALONG_K ? PAD : 0);
    static constexpr int COPIES = ALONG_K ? SIDE / (PRODUCERS / 8) : 1;  // rows of which a thread copies every 8th float
    static constexpr bool KEPT = COPIES <= 8;  // registers for where they begin; with more, those for sums are worse
    typedef float Memory[TILE_K][PITCH];

    const Map& map;
    const float* matrix;
    unsigned first;  // row of op(A), or column of op(B)
    int last, ld;    // the last one that exists, counted from `first`
    bool mapped, pairs;

    const float* from;  // where this thread's part of the next stage begins
    int row[KEPT ? COPIES : 1];  // ALONG_K: where its rows begin, from there on

    __device__ Fp32Tile(const Map& map, const float* matrix, unsigned first, int count, int ld)
        : map(map), matrix(matrix), first(first), last(count - 1 - first), ld(ld),
          mapped(!ALONG_K && exists(map) && aligned16(matrix, ld)),
          pairs(!ALONG_K && SIDE % 64 == 0 && aligned8(matrix, ld))
    {
    }

    // Called by one thread: ask for the tile from k on.
    __device__ void ask(Memory& to, int k, Mbarrier* full) const
    {
        mbarrier_expect_tx(full, sizeof to);
        tma_load(to, map, k, first, full);
    }

    __device__ bool addresses_fit() const { return !ALONG_K || ld <= 0x7fffffff / SIDE; }

    // Where whole stages end if they must not be read past the end of the matrix.
    __device__ int whole(int end, int K) const
    {
        const unsigned past = max(0, SIDE - 1 - last);
        return !ALONG_K && past && !mapped ? min(end, K - (int)((past + ld - 1) / ld)) : end;
    }

    __device__ void begin(int lane, int k)
    {
        if (ALONG_K) {
            from = matrix + (long long)first * ld + k + lane % 8;  // as in 13: eight lanes along k
            if (KEPT)
                for (int i = 0; i < COPIES; ++i) row[i] = min(lane / 8 + i * (PRODUCERS / 8), last) * ld;
        } else {
            from = matrix + (long long)(k + lane / 32) * ld + first;
        }
    }

    // Copy the tile of a whole stage, unless TMA does, and go on to the next one.
    __device__ void copy(Memory& to, int lane)
    {
        if (ALONG_K && !KEPT) {
            const float* at = from + min(lane / 8, last) * ld;
            #pragma unroll 4
            for (int i = 0; i < COPIES; ++i) {
                const int r = lane / 8 + i * (PRODUCERS / 8);
                #pragma unroll
                for (int k = 0; k < TILE_K; k += 8) cp_async4(&to[lane % 8 + k][r], at + k, true);
                if (r + PRODUCERS / 8 <= last) at += PRODUCERS / 8 * (long long)ld;  // else once more the same one
            }
            from += TILE_K;
            return;
        }
        if (ALONG_K) {
            for (int k = 0; k < TILE_K; k += 8)
                for (int i = 0; i < COPIES; ++i)
                    cp_async4(&to[lane % 8 + k][lane / 8 + i * (PRODUCERS / 8)], from + row[i] + k, true);
            from += TILE_K;
            return;
        }
        if (!mapped) {
            if (pairs) copy_rows<2>(to, lane);
            else copy_rows<1>(to, lane);
        }
        from += (long long)TILE_K * ld;
    }

    // Each warp copies rows, and each lane one float or two side by side.
    template <int FLOATS>
    __device__ void copy_rows(Memory& to, int lane) const
    {
        const float* next = from + lane % 32 * FLOATS;
        #pragma unroll 4  // its instructions compete with products
        for (int i = 0; i < TILE_K; i += PRODUCERS / 32, next += PRODUCERS / 32 * (long long)ld)
            for (int j = 0; j < SIDE; j += 32 * FLOATS)
                cp_async_floats<FLOATS>(&to[lane / 32 + i][lane % 32 * FLOATS + j], next + j);
    }

    // Copy the tile from k on, of which `left` k exist, unless TMA does.
    __device__ void copy_tested(Memory& to, int lane, int k, int left) const
    {
        if (ALONG_K)
            #pragma unroll 1
            for (int i = 0; i < COPIES; ++i) {
                const int r = lane / 8 + i * (PRODUCERS / 8);
                const float* at = matrix + (long long)(first + min(r, last)) * ld + k;
                for (int j = lane % 8; j < TILE_K; j += 8) cp_async4(&to[j][r], at + j, j < left);
            }
        else
            #pragma unroll 1
            for (int i = mapped ? TILE_K : lane / 32; i < TILE_K; i += PRODUCERS / 32) {
                const float* at = matrix + (long long)(k + i) * ld + first;
                for (int j = lane % 32; j < SIDE; j += 32) cp_async4(&to[i][j], at + j, i < left && j <= last);
            }
    }
};

template <int TILE_M, int TILE_N, int TILE_K, int NUM_STAGES, class Map = TensorMap>
struct Fp32Producer {
#if A_IN_LINES
    typedef Fp32Lines<TILE_M, TILE_K, PRODUCERS, Map> A;
#else
    typedef Fp32Tile<TILE_M, TILE_K, !TRANSA, Map> A;
#endif
#if B_IN_LINES
    typedef Fp32Lines<TILE_N, TILE_K, PRODUCERS, Map> B;
#else
    typedef Fp32Tile<TILE_N, TILE_K, TRANSB, Map> B;
#endif
    typedef typename A::Memory TileA;
    typedef typename B::Memory TileB;
    static constexpr int PITCH_A = A::PITCH, PITCH_B = B::PITCH;  // floats from one k to the next

    // Called by one thread: initialise the barriers of all stages; `readers` arrivals say that a stage is empty.
    // (A thread for each barrier would take longer: the warp runs them one by one all the same.)
    __device__ static void init_barriers(Mbarrier* full, Mbarrier* empty, int readers)
    {
        #pragma unroll
        for (int i = 0; i < NUM_STAGES; ++i) mbarrier_init(full + i, PRODUCERS), mbarrier_init(empty + i, readers);
        fence_mbarrier_init();
    }

    // Load k to `end` of op(A)'s rows from `row` on, and of op(B)'s columns from `col` on. The range is a whole number
    // of stages, or ends with K: a box is cut off at the end of the matrix only.
    __device__ static void load(TileA* As, TileB* Bs, Mbarrier* full, Mbarrier* empty, int& stage, int& parity,
                                const Map& map_a, const Map& map_b, const float* matrix_a,
                                const float* matrix_b, unsigned row, unsigned col, int k, int end, int M, int N, int K,
                                int lda, int ldb)
    {
        const int lane = threadIdx.x % PRODUCERS;
        A a(map_a, matrix_a, row, M, lda);
        B b(map_b, matrix_b, col, N, ldb);
        const auto ask = [&](int k) {
            if (lane) return;
            if (a.mapped) a.ask(As[stage], k, full + stage);
            if (b.mapped) b.ask(Bs[stage], k, full + stage);
        };

        // Whole stages need no tests, and few instructions for addresses: the producers compete with the consumers
        // for issue slots. Rows past the last one repeat one. What is past the end of a box is zeros or, without a map,
        // whatever follows in memory: nobody stores those outputs. Stages that might read past the end of a matrix are
        // left to the loop below.
        if (a.addresses_fit() && b.addresses_fit()) {
            const int whole = min(a.whole(end, K), b.whole(end, K));
            a.begin(lane, k), b.begin(lane, k);
            #pragma unroll 1
            for (; whole - k >= TILE_K; k += TILE_K) {
                mbarrier_wait(empty + stage, parity);  // the consumers have read what was there
                ask(k);
                b.copy(Bs[stage], lane);
                a.copy(As[stage], lane);
                cp_async_mbarrier_arrive(full + stage);
                if (++stage == NUM_STAGES) stage = 0, parity ^= 1;
            }
        }

        // The rest of k, with tests.
        #pragma unroll 1
        for (unsigned next = k; next < end; next += TILE_K) {  // unsigned: K may be 2^31 - 1
            const int k = next, left = end - k;
            mbarrier_wait(empty + stage, parity);
            ask(k);
            a.copy_tested(As[stage], lane, k, left);
            b.copy_tested(Bs[stage], lane, k, left);
            cp_async_mbarrier_arrive(full + stage);
            if (++stage == NUM_STAGES) stage = 0, parity ^= 1;
        }
    }
};
